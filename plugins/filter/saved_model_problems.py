# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Filter `saved_model_problems`: what is wrong with a folder of SavedModels on the controller."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.modelarts.engine.plugins.module_utils import saved_model

DOCUMENTATION = r"""
name: saved_model_problems
short_description: What is wrong with a folder of SavedModels
description: Checks a folder of the controller for all that would keep TensorFlow Serving from serving it. Nothing is loaded or run.
version_added: 0.1.0
author: the modelarts.engine authors
options:
  _input:
    description: The folder that holds the versions.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Check a SavedModel
  ansible.builtin.assert:
    that: "'/srv/models/flowers' | modelarts.engine.saved_model_problems == []"
"""

RETURN = r"""
_value:
  description: A sentence for each problem; empty where there is none.
  type: list
  elements: str
"""


class FilterModule:
    """The collection's filter of this name."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        return {"saved_model_problems": saved_model.problems}
