# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_rehearse
short_description: Run a finished image as the platform would and ask it once
description:
  - The image runs as 1000:100 with a read-only root, no capability and 64 MB of shared memory. The answer must come over TLS that the image's own CA verifies.
  - What is asked and what must be answered says C(rehearsal/engine.yml) in the role of the engine that the image's label names.
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: none}
options:
  name:
    description: The image's name.
    type: str
    required: true
  key:
    description: Key of the image's last stage.
    type: str
    required: true
  model:
    description: Model folder on the engine's host.
    type: path
    required: true
  engine_url:
    description: The engine as the controller reaches it.
    type: str
    required: true
  timeout:
    description: Seconds until /health must answer 200.
    type: float
    default: 120
  prompt:
    description: What to ask instead; any answer will do then.
    type: str
"""

EXAMPLES = r"""
- name: Rehearse
  modelarts.engine.image_rehearse:
    name: triton
    key: "{{ key }}"
    model: /srv/models/smollm2/model
    engine_url: unix:///var/run/docker.sock
"""

RETURN = r"""
answer:
  description: What the model answered, text or numbers.
  returned: success
  type: raw
ready_seconds:
  description: Seconds from start to the first 200 of /health.
  returned: success
  type: float
"""
