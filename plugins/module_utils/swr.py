# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""SWR's management API by Huawei's own SDK, which is imported only here: pushing with a long-term login needs none of it."""

from __future__ import annotations

import base64
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.modelarts.engine.plugins.module_utils import registry


class SwrError(Exception):
    """SWR refused; the message says what and where."""


def api_url(region: str) -> str:
    """The management API of a region."""
    return f"https://swr-api.{region}.myhuaweicloud.com"


class Management:
    """SWR's management API of one region.

    :param secrets: credentials by name, see `registry.secrets`.
    :param url: another address than the region's own.
    :raises SwrError: the SDK or the access key is missing.
    """

    def __init__(self, region: str, secrets: Mapping[str, str], *, url: str = "", ca_bundle: str = "") -> None:
        try:
            from huaweicloudsdkcore.auth.credentials import BasicCredentials
            from huaweicloudsdkcore.exceptions import exceptions
            from huaweicloudsdkcore.http.http_config import HttpConfig
            from huaweicloudsdkcore.region.region import Region
            from huaweicloudsdkswr import v2
        except ImportError as error:
            raise SwrError(
                "Huawei's SDK is missing, which creates organisations and temporary logins; install the Python package huaweicloudsdkswr "
                "(in the checkout: .venv/bin/pip install -r requirements-huawei.txt)"
            ) from error
        missing = [name for name in (registry.ACCESS_KEY, registry.SECRET_KEY) if name not in secrets]
        if missing:
            raise SwrError(
                f"SWR's management API needs {' and '.join(missing)}, in the environment or in the credentials file"
            )
        self._sdk: Any = v2
        self._errors: Any = exceptions
        self._url = url or api_url(region)
        config = HttpConfig.get_default_config()
        config.retry_times = 3
        config.ssl_ca_cert = ca_bundle or os.environ.get("REQUESTS_CA_BUNDLE") or None
        credentials = BasicCredentials(
            secrets[registry.ACCESS_KEY], secrets[registry.SECRET_KEY], secrets.get(registry.PROJECT)
        )
        if registry.SECURITY_TOKEN in secrets:
            credentials.with_security_token(secrets[registry.SECURITY_TOKEN])

        def client() -> Any:
            builder = v2.SwrClient.new_builder().with_http_config(config).with_credentials(credentials)
            return builder.with_region(Region(region, self._url)).build()

        self._client = self._call("log in", client)

    def has_organization(self, name: str) -> bool:
        """Whether the organisation exists and these credentials see it."""
        return self._found(
            f"look up organisation {name}", self._client.show_namespace, self._sdk.ShowNamespaceRequest(namespace=name)
        )

    def create_organization(self, name: str) -> None:
        """Makes an organisation; names are global in a region."""
        body = self._sdk.CreateNamespaceRequestBody(namespace=name)
        self._call(
            f"create organisation {name}", self._client.create_namespace, self._sdk.CreateNamespaceRequest(body=body)
        )

    def has_repository(self, organization: str, name: str) -> bool:
        """Whether the repository exists."""
        return self._found(
            f"look up repository {organization}/{name}",
            self._client.show_repository,
            self._sdk.ShowRepositoryRequest(namespace=organization, repository=name),
        )

    def create_repository(self, organization: str, name: str) -> None:
        """Makes a private repository."""
        body = self._sdk.CreateRepoRequestBody(repository=name, is_public=False, category="app_server")
        self._call(
            f"create repository {organization}/{name}",
            self._client.create_repo,
            self._sdk.CreateRepoRequest(namespace=organization, body=body),
        )

    def temporary_login(self, host: str) -> registry.Login:
        """A login for some hours (six, SWR says), made of the access key."""
        answer = self._call("make a temporary login", self._client.create_secret, self._sdk.CreateSecretRequest())
        auths = answer.auths or {}
        info: Any = auths.get(host) or (next(iter(auths.values())) if len(auths) == 1 else None)
        with contextlib.suppress(AttributeError, ValueError):
            username, colon, password = base64.b64decode(info.auth, validate=True).decode().partition(":")
            if colon:
                return registry.Login(username, password)
        raise SwrError(f"{self._url} gives no temporary login for {host}")

    def _found(self, what: str, call: Callable[..., Any], request: Any) -> bool:
        try:
            self._call(what, call, request)
        except SwrError as error:
            if getattr(error.__cause__, "status_code", None) == 404:
                return False
            raise
        return True

    def _call(self, what: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except self._errors.ServiceResponseException as error:
            said = ", ".join(str(each) for each in (error.status_code, error.error_code, error.error_msg) if each)
            raise SwrError(f"{self._url}: cannot {what}: {said}") from error
        except self._errors.SdkException as error:
            raise SwrError(f"{self._url}: cannot {what}: {error.error_msg}") from error
