# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: image_push
short_description: Push an image of an engine to a registry and prove what arrived
description:
  - The engine pushes; the login goes to it in a header of that one request and lies in no file. Only layers that the registry lacks travel.
  - Before, sizes are checked, and that no tag names another image. Afterwards the registry's manifest must have the pushed digest,
    Docker's schema 2, and the image.
  - Credentials are no options. They come from the environment, or from a file of lines NAME=VALUE that nobody else can read. The names
    are C(REGISTRY_USERNAME) and C(REGISTRY_PASSWORD), or C(HUAWEICLOUD_SDK_AK), C(HUAWEICLOUD_SDK_SK), C(HUAWEICLOUD_SDK_SECURITY_TOKEN)
    and C(HUAWEICLOUD_SDK_PROJECT_ID).
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: full}
options:
  image:
    description: The image, a name or id of the engine, or the short name of one that the collection built, such as C(triton).
    type: str
    required: true
  engine_url:
    description: The engine as the controller reaches it.
    type: str
    default: unix:///var/run/docker.sock
  registry:
    description: The registry's host, with its port where that is not 443.
    type: str
    required: true
  repository:
    description: The repository, organisation included.
    type: str
    required: true
  tags:
    description: Tags; without any, version and git revision where the playbook lies in a clean checkout, and the image's key.
    type: list
    elements: str
    default: []
  force:
    description: Whether a tag that names another image is overwritten.
    type: bool
    default: false
  login:
    description:
      - How to log in. V(password) with user and password, V(long_term) with what SWR makes of an access key, V(temporary) with a login that SWR
        gives for some hours, which needs the Python package huaweicloudsdkswr.
      - V(auto) takes the password where one is given, the temporary login where a security token is, else the access key.
    type: str
    choices: [auto, password, long_term, temporary]
    default: auto
  credentials:
    description: A file with the credentials, mode 0600; empty for the environment.
    type: str
    default: ""
  region:
    description: SWR's region, where the registry's host does not say it.
    type: str
    default: ""
  api_url:
    description: SWR's management API, where it is not the region's own.
    type: str
    default: ""
  ca_bundle:
    description: A PEM file on the controller; what the registry's certificate is verified against instead of the system's certificates.
    type: str
    default: ""
  max_layer_gb:
    description: Largest unpacked layer in GB.
    type: int
    default: 50
  max_image_gb:
    description: Largest unpacked image in GB.
    type: int
    default: 50
  attempts:
    description: How often each tag is tried, with growing pauses and a fresh login each time.
    type: int
    default: 5
  stall_seconds:
    description: A push that says nothing for so long is given up and tried again.
    type: int
    default: 600
"""

EXAMPLES = r"""
- name: Push the image
  modelarts.engine.image_push:
    image: triton
    registry: swr.cn-north-4.myhuaweicloud.com
    repository: my-org/triton
    tags: ["1.4.0"]
"""

RETURN = r"""
reference:
  description: The image by digest, C(registry/repository@sha256:…).
  returned: success
  type: str
media_type:
  description: The manifest's media type in the registry.
  returned: success
  type: str
tags:
  description: Per tag the digest that the registry has under it.
  returned: success
  type: dict
layers:
  description: Per layer C(digest), C(bytes) as they travel, and C(state), one of pushed, mounted, exists.
  returned: success
  type: list
bytes_pushed:
  description: Bytes of the layers that travelled.
  returned: success
  type: int
"""
