# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Makes an organisation and a private repository in SWR where they are missing. Runs on the controller."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.modelarts.engine.plugins.module_utils import logins, swr


class ActionModule(logins.Action):
    """See `ansible-doc modelarts.engine.swr_repository`."""

    SPEC: ClassVar = {
        "organization": {"type": "str", "required": True},
        "repository": {"type": "str", "required": True},
        **logins.OPTIONS,
        "region": {"type": "str", "required": True},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        management = swr.Management(
            args["region"], self.credentials.secrets, url=args["api_url"], ca_bundle=args["ca_bundle"]
        )
        organization, repository = args["organization"], args["repository"]
        created = []
        new = not management.has_organization(organization)
        if new:
            created.append(organization)
            if not self._task.check_mode:
                management.create_organization(organization)
        if new or not management.has_repository(organization, repository):
            created.append(f"{organization}/{repository}")
            if not self._task.check_mode:
                management.create_repository(organization, repository)
        return {"changed": bool(created), "created": created}
