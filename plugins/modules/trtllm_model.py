#!/usr/bin/python
# ruff: noqa: E402 - documentation comes first in a module
# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Checks a Hugging Face folder and writes the model package made of it."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: trtllm_model
short_description: Write a model package for the TensorRT-LLM backend
description:
  - Checks a Hugging Face folder of a llama model and what is asked for, and writes the folder C(model) that the platform mounts.
  - The folder is complete or absent, whenever this is broken off; one that is right is left alone.
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: full}
options:
  dest:
    description: The folder to write.
    type: path
    required: true
  source:
    description: The Hugging Face folder.
    type: path
    required: true
  release:
    description: A row of C(meta/trtllm_releases.yml), with its tag as C(release).
    type: dict
    required: true
  arguments:
    description: The role's arguments without their prefix.
    type: dict
    required: true
  scripts:
    description: Text of each file of the package that is not the model's, by its path.
    type: dict
    required: true
  limit:
    description: Bytes that the package and the image may have together; 0 for no limit.
    type: int
    default: 0
  image:
    description: Bytes of the image; 0 where they are not known.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Write a package
  modelarts.engine.trtllm_model:
    dest: /srv/packages/llama_7b/model
    source: /srv/models/llama-7b-hf
    release: "{{ 'v0.12.0' | modelarts.engine.trtllm_release }}"
    arguments: {name: llama_7b}
    scripts: {triton_serving.sh: ""}
"""

RETURN = r"""
bytes:
  description: Bytes of the package.
  returned: success
  type: int
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama, trtllm_package


def main() -> None:
    """Runs the module."""
    module = AnsibleModule(
        argument_spec={
            "dest": {"type": "path", "required": True},
            "source": {"type": "path", "required": True},
            "release": {"type": "dict", "required": True},
            "arguments": {"type": "dict", "required": True},
            "scripts": {"type": "dict", "required": True},
            "limit": {"type": "int", "default": 0},
            "image": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    given = module.params
    try:
        source = Path(given["source"])
        model = hf_llama.check(source)
        wrong = trtllm_package.problems(model, given["release"], given["arguments"])
        if wrong:
            raise trtllm_package.PackageError("\n".join(wrong))
        package = trtllm_package.Package(
            Path(given["dest"]), source, model, given["release"], given["arguments"], given["scripts"]
        )
        trtllm_package.check_size(package, given["limit"], given["image"])
        current = package.current()
        if not current and not module.check_mode:
            package.write()
    except (hf_llama.FolderError, trtllm_package.PackageError) as error:
        module.fail_json(msg=str(error), exit_code=2)
    except OSError as error:
        module.fail_json(msg=f"{error.filename or given['dest']}: {error.strerror}", exit_code=1)
    module.exit_json(changed=not current, bytes=package.bytes)


if __name__ == "__main__":
    main()
