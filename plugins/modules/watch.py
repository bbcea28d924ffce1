# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: watch
short_description: Run a long command and follow it
description:
  - Runs a command on the target, shows how far a compiler says it is, and tells the likely cause where it fails.
  - The command may take hours without any output. What it leaves in the task's temporary folder is removed.
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: none}
options:
  argv:
    description: The command and its arguments.
    type: list
    elements: str
    required: true
  what:
    description: What the command does, for the message of a failure.
    type: str
"""

EXAMPLES = r"""
- name: Compile
  modelarts.engine.watch:
    argv: [make, -j4]
    what: compiling
"""

RETURN = r"""
rc:
  description: Exit code.
  returned: always
  type: int
stdout:
  description: The end of the output, errors included.
  returned: always
  type: str
"""
