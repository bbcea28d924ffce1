# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_stage
short_description: Look up, start, commit or remove what a stage needs
description:
  - Works on one container engine through its API. Before a commit the container's changes are checked for traces of the build.
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: none}
options:
  state:
    description: What to bring about.
    type: str
    required: true
    choices: [looked_up, base_wanted, base_made, started, committed, absent, tagged]
  engine_url:
    description: The engine as the controller reaches it.
    type: str
    required: true
  plan:
    description: What image_plan returned; for C(looked_up), C(tagged) and the states of the base.
    type: dict
  stage:
    description: One of the missing stages that C(looked_up) found.
    type: dict
  build:
    description:
      - The plan's C(build), that is C(ca_bundle), a PEM file on the controller that the container trusts, C(network),
        C(cache), the repository in which build hosts share their stages, and C(cache_secret_file).
    type: dict
  may_be_down:
    description: For C(looked_up), return C(down) instead of failing where no engine answers.
    type: bool
"""

EXAMPLES = r"""
- name: Commit the stage
  modelarts.engine.image_stage:
    state: committed
    stage: "{{ stage }}"
    engine_url: unix:///var/run/docker.sock
"""

RETURN = r"""
cached:
  description: Names of the stages that need no build.
  returned: looked_up
  type: list
problems:
  description: What was wrong with the shared cache; a build goes on without it.
  returned: with a shared cache
  type: list
bytes:
  description: Bytes that the new layer adds.
  returned: committed
  type: int
names:
  description: The image's names.
  returned: tagged
  type: list
"""
