# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Documentation of the action of this name; it runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: swr_repository
short_description: Make an organisation and a repository in SWR
description:
  - Makes what is missing of an organisation and a private repository in it, through Huawei's SDK (the Python package huaweicloudsdkswr).
  - Credentials are no options. They come from the environment or a file, as C(HUAWEICLOUD_SDK_AK), C(HUAWEICLOUD_SDK_SK),
    C(HUAWEICLOUD_SDK_SECURITY_TOKEN) and C(HUAWEICLOUD_SDK_PROJECT_ID); see M(modelarts.engine.image_push).
version_added: 0.1.0
author: the modelarts.engine authors
attributes:
  check_mode: {description: Can run in check mode, support: full}
options:
  organization:
    description: The organisation; names are global in a region.
    type: str
    required: true
  repository:
    description: The repository in it.
    type: str
    required: true
  region:
    description: SWR's region.
    type: str
    required: true
  credentials:
    description: A file with the credentials, mode 0600; empty for the environment.
    type: str
    default: ""
  api_url:
    description: The management API, where it is not the region's own.
    type: str
    default: ""
  ca_bundle:
    description: A PEM file on the controller; what the API's certificate is verified against instead of the system's certificates.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Make the repository
  modelarts.engine.swr_repository:
    organization: my-org
    repository: triton
    region: cn-north-4
"""

RETURN = r"""
created:
  description: What was missing, C(organisation) and C(organisation/repository).
  returned: success
  type: list
"""
