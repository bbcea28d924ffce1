# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Stage images shared between build hosts through one repository of a registry.

A stage is there under two tags: `<key>`, and `<key>.<seal>`. The seal is an HMAC over the key and the image's id; with a secret, who may
write to the repository but does not know the secret cannot plant an image. Every entry is checked before it is used: that its seal is
right, that it is labelled with the key, and that its layers are those it was labelled with. The engine checks each layer's digest.
What cannot be read, or is not what it says, counts as missing and is built and published again; a build never fails for its cache.

Credentials are those of the controller's own Docker configuration (`docker login`, or `DOCKER_CONFIG`); where that has none for the host, those of a
push (see `logins`).
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import hmac
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import requests.exceptions
from ansible_collections.modelarts.engine.plugins.module_utils import engine, logins, registry, swr
from docker.errors import APIError, DockerException, NotFound

ERRORS = (
    engine.EngineError,
    registry.RegistryError,
    swr.SwrError,
    DockerException,
    requests.exceptions.RequestException,
)


def _finish(lines: Iterable[Mapping[str, Any]]) -> None:
    """Reads a pull or push to its end; the engine tells errors inside its stream only."""
    for line in lines:
        if "error" in line:
            raise engine.EngineError(str(line["error"]))


@dataclass
class Cache:
    """One repository.

    :param repository: `registry.example.com/organisation/cache`, without a tag; empty for no cache.
    :param secret: of the seals.
    :param credentials: of the registry; where they have none that fit, Docker's configuration is asked.
    :ivar problems: what was wrong with entries or with the registry, in words; each counted as a miss.
    """

    repository: str
    secret: bytes = b""
    credentials: logins.Credentials | None = None
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, build: Mapping[str, Any]) -> Cache:
        """The cache of a plan's `build` (`cache`, `cache_secret_file`, `cache_credentials`)."""
        if not build.get("cache"):
            return cls("")
        file = build.get("cache_secret_file")
        secret = Path(file).read_bytes().strip() if file else b""
        return cls(build["cache"], secret, logins.Credentials(build.get("cache_credentials") or ""))

    @functools.cached_property
    def _auth(self) -> dict[str, str] | None:
        """The login as the SDK takes it; None makes it look into Docker's configuration."""
        fresh = self.credentials.of_cache(self.repository.partition("/")[0]) if self.credentials else None
        login = fresh() if fresh else None
        return {"username": login.username, "password": login.password} if login else None

    def _problem(self, text: str, error: Exception) -> None:
        said = f"{text}: {engine.message(error)}"
        self.problems.append(self.credentials.clean(said) if self.credentials else said)

    def seal(self, key: str, image_id: str) -> str:
        """The second tag of an image."""
        return f"{key}.{hmac.new(self.secret, f'{key} {image_id}'.encode(), hashlib.sha256).hexdigest()[:32]}"

    def fetch(self, client: docker.DockerClient, key: str, name: str, check: Callable[[], bool]) -> bool:
        """Brings an image and names it `name`.

        :param check: says whether what now has that name is what it should be; if not, the name goes again.
        :returns: whether it is there.
        """
        if not self.repository:
            return False
        try:
            digest = self._digest(client, key)
            if digest is None:
                return False
            found = f"{self.repository}@{digest}"
            _finish(client.api.pull(found, stream=True, decode=True, auth_config=self._auth))
            try:
                image_id = client.api.inspect_image(found)["Id"]
                if self._digest(client, self.seal(key, image_id)) != digest:
                    raise engine.EngineError("its seal is not right")
                engine.tag(client, found, name)
                if not check():
                    client.api.remove_image(name)
                    raise engine.EngineError("its label or its layers are not those of the key")
            finally:
                with contextlib.suppress(APIError):
                    client.api.remove_image(found)
        except ERRORS as error:
            self._problem(f"cache entry {self.repository}:{key} is not used", error)
            return False
        return True

    def publish(self, client: docker.DockerClient, key: str, name: str) -> bool:
        """Pushes the image `name` as the entry of a key; returns whether that worked."""
        if not self.repository:
            return False
        tags = [self.seal(key, client.api.inspect_image(name)["Id"]), key]
        try:
            for each in tags:  # the key comes last: from then on the entry is complete
                engine.tag(client, name, f"{self.repository}:{each}")
                try:
                    _finish(client.api.push(self.repository, each, auth_config=self._auth, stream=True, decode=True))
                finally:
                    with contextlib.suppress(APIError):
                        client.api.remove_image(f"{self.repository}:{each}")
        except ERRORS as error:
            self._problem(f"{self.repository}:{key} could not be published", error)
            return False
        return True

    def _digest(self, client: docker.DockerClient, tag: str) -> str | None:
        """Digest of a tag's manifest in the registry; None where there is no such tag."""
        try:
            about = client.api.inspect_distribution(f"{self.repository}:{tag}", auth_config=self._auth)
            return str(about["Descriptor"]["digest"])
        except NotFound:
            return None
        except APIError as error:
            if "manifest unknown" in engine.message(error) or "not found" in engine.message(error):
                return None
            raise
