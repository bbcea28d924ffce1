# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Makes an organisation and a private repository in SWR where they are missing. Runs on the controller."""

from __future__ import annotations

from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.modelarts.engine.plugins.module_utils import registry, swr

SPEC: dict[str, dict[str, Any]] = {
    "organization": {"type": "str", "required": True},
    "repository": {"type": "str", "required": True},
    "region": {"type": "str", "required": True},
    "credentials": {"type": "str", "default": ""},
    "api_url": {"type": "str", "default": ""},
    "ca_bundle": {"type": "str", "default": ""},
}


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.swr_repository`."""

    _requires_connection = False
    _supports_check_mode = True
    _VALID_ARGS = frozenset(SPEC)

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(argument_spec=SPEC)
        secrets: dict[str, str] = {}
        try:
            secrets = registry.secrets(args["credentials"])
            result.update(self._made(args, secrets))
        except registry.SecretsError as error:
            result.update(failed=True, exit_code=2, msg=str(error))
        except swr.SwrError as error:
            said = str(error)
            for name in (registry.SECRET_KEY, registry.SECURITY_TOKEN, registry.ACCESS_KEY):
                said = said.replace(secrets.get(name) or "\0", "…")
            result.update(failed=True, exit_code=1, msg=said)
        return result

    def _made(self, args: dict[str, Any], secrets: dict[str, str]) -> dict[str, Any]:
        management = swr.Management(args["region"], secrets, url=args["api_url"], ca_bundle=args["ca_bundle"])
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
