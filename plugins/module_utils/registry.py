# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Logins of a registry and the part of its API (Docker's registry HTTP API v2) that says what a tag is."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter
from urllib3.util.retry import Retry

SCHEMA2 = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (
    SCHEMA2,
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
)
# The most that an answer of the API may be and take. Layers are not fetched here.
ANSWER_BYTES, ANSWER_SECONDS = 16 << 20, 300
SWR_HOST = re.compile(r"swr\.([a-z0-9-]{2,40})\.myhuaweicloud\.(?:com|eu)")

ACCESS_KEY, SECRET_KEY = "HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK"  # names, as Huawei's SDK has them
SECURITY_TOKEN, PROJECT = "HUAWEICLOUD_SDK_SECURITY_TOKEN", "HUAWEICLOUD_SDK_PROJECT_ID"
USER, PASSWORD = "REGISTRY_USERNAME", "REGISTRY_PASSWORD"
SECRETS = (ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, PROJECT, USER, PASSWORD)


class RegistryError(Exception):
    """The registry refused or could not be reached; the message says what and where."""

    transient = True  # whether another attempt, with a fresh login, may do better


class LoginError(RegistryError):
    """The registry does not take the login."""

    transient = False


class ManifestError(RegistryError):
    """The registry contradicts itself about a manifest."""

    transient = False


class CertificateError(RegistryError):
    """Who answers cannot prove to be the registry."""

    transient = False


class SecretsError(Exception):
    """Credentials are missing or lie where others can read them."""


@dataclass(frozen=True)
class Login:
    """A user and a password; neither is ever shown."""

    username: str = field(repr=False)
    password: str = field(repr=False)


@dataclass(frozen=True)
class Manifest:
    """What a tag names."""

    digest: str
    media_type: str
    config: str
    layers: tuple[Mapping[str, Any], ...]


def region_of(registry: str) -> str:
    """The region in the name of a shared SWR registry, or nothing."""
    found = SWR_HOST.fullmatch(registry)
    return found[1] if found else ""


def secrets(path: str) -> dict[str, str]:
    """Credentials by name: from a file of lines NAME=VALUE, or from the environment where no file is given.

    :raises SecretsError: the file cannot be read, others may read it, or a line is something else.
    """
    if not path:
        return {name: os.environ[name] for name in SECRETS if os.environ.get(name)}
    try:
        with Path(path).open() as file:
            mode = os.fstat(file.fileno()).st_mode
            lines = [line.rstrip("\r\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        raise SecretsError(
            f"{path}: the credentials cannot be read: {getattr(error, 'strerror', None) or 'not text'}"
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        raise SecretsError(f"{path}: others may read the credentials; chmod 600 {path}")
    found = {}
    for number, line in enumerate(lines, 1):
        name, equals, value = line.partition("=")
        if not line.strip() or line.startswith("#"):
            continue
        if not equals or name not in SECRETS:
            raise SecretsError(f"{path}: line {number} is not NAME=VALUE with a name of {', '.join(SECRETS)}")
        if value:
            found[name] = value
    return found


def long_term_login(region: str, access_key: str, secret_key: str) -> Login:
    """SWR's login for as long as the access key is valid: the password is an HMAC, the secret key itself is never sent."""
    password = hmac.new(secret_key.encode(), access_key.encode(), hashlib.sha256).hexdigest()
    return Login(f"{region}@{access_key}", password)


class Registry:
    """One registry over HTTPS, verified against the system's certificates or a bundle.

    :param ca_bundle: a PEM file, or empty.
    """

    def __init__(self, host: str, login: Login, ca_bundle: str = "") -> None:
        self.host = host
        self._login = login
        self._session = requests.Session()
        if ca_bundle:
            # Set on each request: a session's own setting loses against REQUESTS_CA_BUNDLE.
            self._verify: str | bool = ca_bundle
        else:
            self._verify = True
        # How long to wait is not the registry's to say: it may say a day.
        patient = Retry(
            total=4, read=1, backoff_factor=0.3, status_forcelist=(429, 500, 502, 503, 504), raise_on_status=False,
            respect_retry_after_header=False,
        )  # fmt: skip
        self._session.mount("https://", HTTPAdapter(max_retries=patient))

    def check(self) -> None:
        """Logs in.

        :raises LoginError: the registry does not take the login.
        """
        answer = self._get("/v2/", "")
        if answer.status_code in (401, 403):
            raise LoginError(
                f"{self.host} refuses the login ({answer.status_code}); check the credentials and the region"
            )
        if answer.status_code != 200:
            raise RegistryError(f"{self.host} answers {answer.status_code} to GET /v2/; is this a registry?")

    def manifest(self, repository: str, reference: str) -> Manifest | None:
        """What a tag or digest names, or None where there is no such thing. The digest is computed here, of the bytes that came.

        :raises RegistryError: no usable answer, or the registry names another digest than its bytes have.
        """
        answer = self._get(f"/v2/{repository}/manifests/{reference}", f"repository:{repository}:pull,push")
        where = f"{self.host}/{repository}:{reference}"
        if answer.status_code == 404:
            return None
        if answer.status_code == 403:
            raise LoginError(f"{self.host} does not let this login read {repository} (403)")
        if answer.status_code != 200:
            raise RegistryError(f"{where}: the registry answers {answer.status_code}")
        digest = f"sha256:{hashlib.sha256(answer.content).hexdigest()}"
        said = answer.headers.get("Docker-Content-Digest", digest)
        if said != digest:
            raise ManifestError(f"{where}: the manifest has digest {digest}, but the registry says {said}")
        try:
            body = json.loads(answer.content)
            media_type = answer.headers.get("Content-Type", "").partition(";")[0]
            itself = str(body.get("mediaType") or media_type)
            config = str((body.get("config") or {}).get("digest", ""))
            layers = tuple(body.get("layers") or ())
        except (ValueError, AttributeError, TypeError) as error:
            raise RegistryError(f"{where}: the manifest is not what a registry holds: {error}") from error
        if itself != media_type:
            raise ManifestError(f"{where}: the registry says the manifest is {media_type}, the manifest says {itself}")
        return Manifest(digest, media_type, config, layers)

    def digest(self, repository: str, reference: str) -> str | None:
        """What the registry says is the digest of a tag's manifest, or None where there is no such tag."""
        answer = self._get(f"/v2/{repository}/manifests/{reference}", f"repository:{repository}:pull", "HEAD")
        if answer.status_code == 404:
            return None
        self._demand(answer, 200, f"{repository}:{reference}: looking it up")
        return answer.headers.get("Docker-Content-Digest")

    def tags(self, repository: str) -> list[str]:
        """All tags of a repository; none where there is no such repository."""
        found: list[str] = []
        path = f"/v2/{repository}/tags/list?n=1000"
        while path:
            answer = self._get(path, f"repository:{repository}:pull")
            if answer.status_code == 404:
                break
            self._demand(answer, 200, f"{repository}: listing the tags")
            found += answer.json().get("tags") or []
            following = urlsplit(answer.links.get("next", {}).get("url", ""))
            path = f"{following.path}?{following.query}" if following.path else ""
        return found

    def config(self, repository: str, digest: str) -> dict[str, Any]:
        """An image's configuration."""
        answer = self._get(f"/v2/{repository}/blobs/{digest}", f"repository:{repository}:pull")
        self._demand(answer, 200, f"{repository}: reading a configuration")
        config: dict[str, Any] = answer.json()
        return config

    def delete(self, repository: str, digest: str) -> None:
        """Removes a manifest and with it every tag that names it; one that is gone is fine.

        :raises RegistryError: also where the registry deletes nothing.
        """
        answer = self._get(
            f"/v2/{repository}/manifests/{digest}", f"repository:{repository}:pull,push,delete", "DELETE"
        )
        if answer.status_code == 405:
            raise RegistryError(
                f"{self.host} has deletion switched off (405); its administrator can allow it, in docker-registry with storage.delete.enabled: true"
            )
        if answer.status_code != 404:
            self._demand(answer, 202, f"{repository}: deleting")

    def _demand(self, answer: requests.Response, status: int, what: str) -> None:
        if answer.status_code in (401, 403):
            raise LoginError(f"{self.host}/{what} is not allowed to this login ({answer.status_code})")
        if answer.status_code != status:
            raise RegistryError(f"{self.host}/{what} failed: the registry answers {answer.status_code}")

    def _get(self, path: str, scope: str, method: str = "GET") -> requests.Response:
        url = f"https://{self.host}{path}"
        headers = {"Accept": ", ".join(ACCEPTED)}
        basic = (self._login.username, self._login.password) if self._login.username else _as_it_is
        try:
            answer = self._request(method, url, headers=headers, auth=basic)
            kind, _, rest = answer.headers.get("WWW-Authenticate", "").partition(" ")
            if answer.status_code == 401 and kind.lower() == "bearer":
                token = self._token(requests.utils.parse_dict_header(rest), scope, basic)
                bearer = {**headers, "Authorization": f"Bearer {token}"}
                answer = self._request(method, url, headers=bearer, auth=_as_it_is)
        except requests.exceptions.SSLError as error:
            raise CertificateError(
                f"the certificate of {self.host} cannot be verified: {error}; if a CA of your own signed it, give swr_push_ca_bundle (cache: --ca-bundle)"
            ) from error
        except requests.RequestException as error:
            raise RegistryError(f"{self.host} cannot be reached: {error}") from error
        return answer

    def _request(self, method: str, url: str, **options: Any) -> requests.Response:
        """One request, whose answer is read to its end within bounds."""
        until = time.monotonic() + ANSWER_SECONDS
        answer = self._session.request(method, url, verify=self._verify, timeout=(15, 60), stream=True, **options)
        content = bytearray()
        with answer:
            for piece in answer.iter_content(4096):
                content += piece
                if len(content) > ANSWER_BYTES or time.monotonic() > until:
                    raise RegistryError(
                        f"{self.host} sends an answer without an end: {len(content)} bytes so far; is this a registry?"
                    )
        answer._content = bytes(content)
        return answer

    def _token(self, challenge: Mapping[str, str | None], scope: str, basic: Any) -> str:
        realm = challenge.get("realm") or ""
        if urlsplit(realm).scheme != "https":
            raise RegistryError(f"{self.host} wants the login to be sent to {realm or 'nowhere'}, which is not HTTPS")
        asked = {"service": challenge.get("service", ""), "scope": scope}
        answer = self._request("GET", realm, params={n: v for n, v in asked.items() if v}, auth=basic)
        if answer.status_code in (401, 403):
            raise LoginError(
                f"{self.host} refuses the login ({answer.status_code} of {realm}); check the credentials and the region"
            )
        try:
            body = answer.json()
            return str(body.get("token") or body["access_token"])
        except (ValueError, KeyError, AttributeError) as error:
            raise RegistryError(f"{realm} gives no token for {self.host} ({answer.status_code})") from error


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    """An authentication that leaves the header alone, so that no netrc file overrides it."""
    return request
