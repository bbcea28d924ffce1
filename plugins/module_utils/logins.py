# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""How the controller logs in to registries, for a push and for the cache, and the beginning of every action that does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import docker
from ansible.plugins.action import ActionBase
from ansible_collections.modelarts.engine.plugins.module_utils import engine, keys, push, registry, swr

OPTIONS: dict[str, dict[str, Any]] = {
    "credentials": {"type": "str", "default": ""},
    "region": {"type": "str", "default": ""},
    "api_url": {"type": "str", "default": ""},
    "ca_bundle": {"type": "str", "default": ""},
}
_NEEDED = {
    "password": (registry.USER, registry.PASSWORD),
    "temporary": (registry.ACCESS_KEY, registry.SECRET_KEY),
    "long_term": (registry.ACCESS_KEY, registry.SECRET_KEY),
}
_SHOWN = (registry.USER, registry.PROJECT)


class Credentials:
    """Credentials by name, and every text that is made of them and must not be shown.

    :param path: a file of them, empty for the environment; see `registry.secrets`.
    :raises SecretsError: the file is not what it should be.
    """

    def __init__(self, path: str = "") -> None:
        self.secrets = registry.secrets(path)
        self._hidden = [value for name, value in self.secrets.items() if name not in _SHOWN]

    def kind(self, wanted: str = "auto") -> str:
        """What `auto` means: a user and a password if given, else the access key, with a security token for a temporary login.

        :raises SecretsError: nothing that could be used is given.
        """
        if wanted == "auto":
            wanted = "long_term"
            if registry.USER in self.secrets:
                wanted = "password"
            elif registry.SECURITY_TOKEN in self.secrets:
                wanted = "temporary"
        missing = [name for name in _NEEDED[wanted] if name not in self.secrets]
        if missing:
            either = "" if wanted == "password" else f", or {registry.USER} and {registry.PASSWORD}"
            raise registry.SecretsError(
                f"no credentials for the registry: set {' and '.join(missing)}{either}, in the environment or in the file that swr_push_credentials names"
            )
        return wanted

    def logins(
        self, host: str, *, login: str = "auto", region: str = "", api_url: str = "", ca_bundle: str = ""
    ) -> Callable[[], registry.Login]:
        """What gives a fresh login whenever it is called.

        :raises SecretsError: nothing that could be used is given.
        :raises InputError: an access key is given, and nothing says the region.
        """
        kind = self.kind(login)
        region = region or registry.region_of(host)
        if kind != "password" and not region:
            raise keys.InputError(
                f"an access key logs in to SWR, and {host} names no region of it; give swr_push_region, "
                f"or {registry.USER} and {registry.PASSWORD}"
            )

        def fresh() -> registry.Login:
            if kind == "password":
                made = registry.Login(self.secrets[registry.USER], self.secrets[registry.PASSWORD])
            elif kind == "long_term":
                made = registry.long_term_login(
                    region, self.secrets[registry.ACCESS_KEY], self.secrets[registry.SECRET_KEY]
                )
            else:
                made = swr.Management(region, self.secrets, url=api_url, ca_bundle=ca_bundle).temporary_login(host)
            self._hidden.append(made.password)
            return made

        return fresh

    def of_cache(self, host: str) -> Callable[[], registry.Login] | None:
        """`logins` where nobody said which: user and password, or the access key where the host is SWR's.

        None leaves it to Docker's configuration, which comes first: what it has for a host is meant for that host.
        """
        if docker.auth.load_config().resolve_authconfig(host):
            return None
        usable = registry.USER in self.secrets or (registry.ACCESS_KEY in self.secrets and registry.region_of(host))
        return self.logins(host) if usable else None

    def clean(self, text: str) -> str:
        """A text without any credential that a server might have repeated."""
        for secret in self._hidden:
            # What is as short as a syllable hides nothing, and would show itself by what is missing.
            text = text.replace(secret, "…") if len(secret) > 3 else text
        return text


class Action(ActionBase):
    """An action that logs in. Its `SPEC` has at least `credentials`; `work` does it, and its errors become results."""

    _requires_connection = False
    _supports_check_mode = True
    SPEC: dict[str, dict[str, Any]]

    def __init_subclass__(cls) -> None:
        cls._VALID_ARGS = frozenset(cls.SPEC)

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        """The result."""
        raise NotImplementedError

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _, args = self.validate_argument_spec(argument_spec=self.SPEC)
        try:
            self.credentials = Credentials(args["credentials"])
            result.update(self.work(args, task_vars or {}))
        except (registry.SecretsError, keys.InputError, engine.NoImageError) as error:
            result.update(failed=True, exit_code=2, msg=str(error))
        except engine.UnreachableError as error:
            result.update(failed=True, exit_code=3, msg=str(error))
        except (engine.EngineError, push.PushError, registry.RegistryError, swr.SwrError) as error:
            result.update(failed=True, exit_code=1, msg=self.credentials.clean(str(error)))
        return result
