# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_plan
short_description: Check an image's arguments and compute its stages' keys
description:
  - Resolves and checks the arguments of every role that the build uses, and refuses variables that nothing reads.
  - Starts nothing and needs no engine. What it resolved becomes variables of the build host, for the roles that run there.
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: full}
options:
  name:
    description: The image's name.
    type: str
    required: true
  base:
    description: Arguments of the role base_image.
    type: dict
    required: true
  stages:
    description:
      - Each has C(name), C(roles) and optionally C(epoch); a stage without roles is left out.
      - With C(builder) it is one of a builder, whose outputs a stage with C(takes) finds. C(takes_from) is an image by digest (C(image)) and
        the paths in it (C(paths)) that a stage finds in the same place. C(caches) are mounted.
    type: list
    required: true
    elements: dict
  config:
    description: The finished image's configuration, in the engine API's words.
    type: dict
    required: true
  rebuild:
    description: A stage that is built again, with those after it.
    type: str
"""

EXAMPLES = r"""
- name: Compute the keys
  modelarts.engine.image_plan:
    name: triton
    base: {base_image_source: bootstrap}
    stages: [{name: init, roles: [serving_init]}]
    config: {User: "1000:100"}
"""

RETURN = r"""
plan:
  description:
    - C(image), C(base), C(stages) (name, roles, key, config each), C(host) and C(args) (arguments by role).
    - C(preflights) names the roles that assert what their arguments mean.
  returned: success
  type: dict
"""
