# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Pushes an image with the engine's own push, again and again where that helps, and proves by the registry's API what arrived.

The login goes to the engine in a header of the one request that needs it (`X-Registry-Auth`), so no file ever holds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import random
import re
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import docker
import requests
import urllib3
from ansible_collections.modelarts.engine.plugins.module_utils import claims, engine, registry
from docker.errors import DockerException

GB = 1_000_000_000
LONGEST_WAIT = 60  # s between two attempts
SAID_EVERY = 5  # s between two lines about a layer under way
# A container that is never started stands for each name that a push has given, so that the name of a killed one is known for what it is.
MARK = f"{engine.REPOSITORY}-push"
_NAME, _IMAGE, _BEFORE = (f"{engine.LABEL}push-{what}" for what in ("name", "image", "before"))
T = TypeVar("T")

# What a registry or the engine says when another attempt cannot do better.
_FINAL = re.compile(
    r"manifest[ _]invalid|parse manifest|denied|unsupported|name[ _]invalid|x509|certificate|immutable|quota|too large|does not exist",
    re.IGNORECASE,
)
_STATES = {"Pushed": "pushed", "Layer already exists": "exists"}


class PushError(Exception):
    """The image did not arrive; the message says why and what to do."""

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class TooBigError(PushError):
    """The platform would not take the image."""


class TakenError(PushError):
    """A tag already names another image."""


def check_size(image: Mapping[str, Any], history: Iterable[Mapping[str, Any]], max_layer: int, max_image: int) -> None:
    """Refuses what the registry or the platform would refuse after hours.

    :param history: the engine's `GET /images/{name}/history`; sizes are those of unpacked layers.
    :param max_layer: bytes of one layer.
    :param max_image: bytes of the whole image.
    """
    for entry in history:
        if entry["Size"] > max_layer:
            made = " ".join(str(entry.get("Comment") or entry.get("CreatedBy") or "").split())[:80]
            raise TooBigError(
                f"a layer has {entry['Size'] / GB:.2f} GB, the limit is {max_layer / GB:g} GB (swr_push_max_layer_gb); "
                f"split what made it ({made or 'nothing is known of it'}) into several stages"
            )
    if image["Size"] > max_image:
        raise TooBigError(
            f"the image has {image['Size'] / GB:.2f} GB, the limit is {max_image / GB:g} GB (swr_push_max_image_gb); make it smaller"
        )


def check_trust(info: Mapping[str, Any], host: str) -> None:
    """Refuses a registry whose certificate the engine would not verify.

    :param info: the engine's `GET /info`.
    """
    config = info.get("RegistryConfig") or {}
    name = host.rpartition(":")[0] if ":" in host else host
    insecure = not (config.get("IndexConfigs") or {}).get(host, {"Secure": True}).get("Secure", True)
    networks = [ipaddress.ip_network(net, strict=False) for net in config.get("InsecureRegistryCIDRs") or ()]
    found: list[Any] = []
    with contextlib.suppress(OSError):
        found = [ipaddress.ip_address(str(each[4][0]).partition("%")[0]) for each in socket.getaddrinfo(name, None)]
    within = [str(address) for address in found if any(address in net for net in networks)]
    if insecure or within:
        why = f"{within[0]} is in its insecure networks" if within else "it is one of its insecure registries"
        raise PushError(
            f"the engine would not verify the certificate of {host}: {why}; name the registry by another address, "
            "and put its CA into /etc/docker/certs.d on the build host"
        )


def persistently(
    what: str,
    attempts: int,
    say: Callable[[str], None],
    once: Callable[[], T],
    wait: Callable[[float], None] = time.sleep,
) -> T:
    """Does something until it works, with growing pauses; an error that is not `transient` ends it at once."""
    for number in range(1, attempts + 1):
        try:
            return once()
        except (PushError, registry.RegistryError) as error:
            if not error.transient or number == attempts:
                raise
            pause = min(LONGEST_WAIT, 2**number) * random.uniform(0.5, 1)  # noqa: S311 - not a secret
            say(f"{what}: {error}; attempt {number + 1} of {attempts} in {pause:.0f} s")
            wait(pause)
    raise ValueError("attempts must be at least 1")


class Layers:
    """What the engine's push says of each layer.

    :param say: called with a line now and then.
    """

    def __init__(self, name: str, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.states: dict[str, str] = {}
        self._name = name
        self._say = say
        self._clock = clock
        self._said: dict[str, float] = {}

    def line(self, line: Mapping[str, Any]) -> None:
        """One line of the stream that is about a layer."""
        layer, status = str(line["id"]), str(line.get("status", ""))
        state = "mounted" if status.startswith("Mounted from") else _STATES.get(status)
        if state:
            self.states[layer] = state
            self._say(f"{self._name}: layer {layer} {state}")
        elif status == "Pushing":
            detail = line.get("progressDetail") or {}
            now = self._clock()
            if "current" in detail and now - self._said.get(layer, float("-inf")) >= SAID_EVERY:
                self._said[layer] = now
                total = f" of {detail['total'] / 1e6:.1f}" if detail.get("total") else ""
                self._say(f"{self._name}: layer {layer} {detail['current'] / 1e6:.1f}{total} MB")
        elif status.startswith("Retrying"):
            self._say(f"{self._name}: layer {layer} {status.lower()}")


def engine_push(
    url: str,
    name: str,
    login: registry.Login,
    layers: Layers,
    stall: float,
    connect: Callable[..., Any] = docker.DockerClient,
) -> str:
    """One push by the engine; returns the digest it names. The stream is where errors are: each line is read.

    :param name: `registry/repository:tag`, an image of the engine.
    :param stall: seconds without a line after which the push is given up.
    """
    repository, _, tag = name.rpartition(":")
    digest = ""
    try:
        client = connect(base_url=url, timeout=stall)
        try:
            auth = {"username": login.username, "password": login.password}
            for line in client.api.push(repository, tag=tag, auth_config=auth, stream=True, decode=True):
                if "error" in line or "errorDetail" in line:
                    said = str((line.get("errorDetail") or {}).get("message") or line.get("error"))
                    raise PushError(f"{name}: {_explained(said)}", transient=not _FINAL.search(said))
                if "id" in line:
                    layers.line(line)
                digest = str((line.get("aux") or {}).get("Digest", digest))
        finally:
            client.close()
    except (DockerException, requests.RequestException, urllib3.exceptions.HTTPError, OSError) as error:
        said = engine.message(error)
        if "timed out" in said.lower():
            said = f"nothing moved for {stall:g} s"
        raise PushError(f"{name}: the engine's push ended: {said}", transient=True) from error
    if not digest:
        raise PushError(f"{name}: the engine's push ended without an error and without a digest", transient=True)
    return digest


def _explained(said: str) -> str:
    """An error of the push with what to do about it, where that is known."""
    said = " ".join(said.split())
    if "x509" in said or "certificate" in said:
        return f"{said}; put the registry's CA into /etc/docker/certs.d on the build host"
    if "parse manifest" in said.lower() or "manifest invalid" in said.lower():
        return f"{said}; SWR takes Docker's schema 2 only: push from an engine that writes it (not from a containerd image store with attestations)"
    if "denied" in said:
        return f"{said}; does the organisation exist, and may this login push to it? --create makes organisation and repository"
    return said


def same(manifest: registry.Manifest, image_id: str) -> bool:
    """Whether a tag names an image of the engine: the id is the digest of the configuration or, in a containerd store, of the manifest."""
    return image_id in (manifest.config, manifest.digest) and manifest.media_type == registry.SCHEMA2


class Push:
    """One image on its way to one repository.

    :param logins: called for a fresh login before each attempt.
    :param say: gets the progress, a line at a time.
    """

    def __init__(
        self,
        *,
        client: docker.DockerClient,
        url: str,
        image: str,
        host: str,
        repository: str,
        logins: Callable[[], registry.Login],
        say: Callable[[str], None],
        ca_bundle: str = "",
        attempts: int = 5,
        stall: float = 600,
    ) -> None:
        self._client, self._url, self._host, self._repository = client, url, host, repository
        self._logins, self._say, self._ca_bundle = logins, say, ca_bundle
        self._attempts, self._stall = attempts, stall
        self._image = client.api.inspect_image(image)
        self._states: dict[str, str] = {}
        self._tries = 0

    def look_up(self, tags: list[str], *, force: bool) -> dict[str, registry.Manifest | None]:
        """Per tag what it names now, None where it is to be pushed. Nothing is pushed where one is taken.

        :raises TakenError: a tag names another image and `force` is not given.
        """

        def once() -> dict[str, registry.Manifest | None]:
            remote = self._registry()
            return {tag: remote.manifest(self._repository, tag) for tag in tags}

        found = persistently("look-up", self._attempts, self._say, once)
        taken = {tag: has for tag, has in found.items() if has and not same(has, self._image["Id"])}
        if taken and not force:
            named = ", ".join(f"{tag} ({manifest.digest})" for tag, manifest in taken.items())
            raise TakenError(
                f"{self._host}/{self._repository} has another image as {named}; give another tag, or --force to overwrite it"
            )
        return {tag: None if tag in taken else manifest for tag, manifest in found.items()}

    def push(self, tag: str) -> registry.Manifest:
        """Pushes until the registry shows the image under the tag, and returns what it shows."""
        return persistently(f"push {tag}", self._attempts, self._say, lambda: self._once(tag))

    def result(self, manifests: Mapping[str, registry.Manifest], changed: bool) -> dict[str, Any]:
        """What a caller needs to use the image: its reference by digest, and what travelled."""
        first = next(iter(manifests.values()))
        diff_ids = self._image["RootFS"].get("Layers") or []
        layers = [
            {"digest": blob["digest"], "bytes": blob["size"], "state": self._state(diff, blob["digest"])}
            for diff, blob in zip(diff_ids, first.layers, strict=True)
        ]
        name = f"{self._host}/{self._repository}"
        return {
            "changed": changed,
            "reference": f"{name}@{first.digest}",
            "digest": first.digest,
            "media_type": first.media_type,
            "image_id": self._image["Id"],
            "registry": self._host,
            "repository": self._repository,
            "tags": {tag: manifest.digest for tag, manifest in manifests.items()},
            "names": [f"{name}:{tag}" for tag in manifests],
            "layers": layers,
            "bytes": sum(layer["bytes"] for layer in layers),
            "bytes_pushed": sum(layer["bytes"] for layer in layers if layer["state"] == "pushed"),
            "attempts": self._tries,
        }

    def _state(self, diff_id: str, blob: str) -> str:
        return self._states.get(diff_id[7:19]) or self._states.get(blob[7:19]) or "exists"

    def _registry(self) -> registry.Registry:
        self._login = self._logins()
        remote = registry.Registry(self._host, self._login, self._ca_bundle)
        remote.check()
        return remote

    def _once(self, tag: str) -> registry.Manifest:
        self._tries += 1
        remote = self._registry()
        name = f"{self._host}/{self._repository}:{tag}"
        layers = Layers(f"push {tag}", self._say)
        with engine.engine_errors(), self._named(name):
            try:
                digest = engine_push(self._url, name, self._login, layers, self._stall)
            finally:
                # What one attempt has sent the next one finds there.
                self._states = {**layers.states, **{k: v for k, v in self._states.items() if v == "pushed"}}
        there = remote.manifest(self._repository, tag)
        if there is None:
            raise PushError(f"{name}: the push ended well, but the registry has no such tag", transient=True)
        if there.digest != digest:
            raise PushError(
                f"{name}: pushed {digest}, but the registry has {there.digest}: somebody else pushes this tag"
            )
        if there.media_type != registry.SCHEMA2:
            raise PushError(
                f"{name}: the registry has a manifest of type {there.media_type or 'unknown'}, SWR and ModelArts need {registry.SCHEMA2}"
            )
        if not same(there, self._image["Id"]):
            raise PushError(
                f"{name}: the registry's manifest is of another image ({there.config}) than {self._image['Id']}"
            )
        return there

    @contextlib.contextmanager
    def _named(self, name: str) -> Iterator[None]:
        """The image under the name to push, for the time of the push: the engine's push knows an image by nothing else."""
        image = self._image["Id"]
        before = self._client.api.inspect_image(name)["Id"] if engine.exists(self._client, name) else ""
        if before == image:
            yield
            return
        mark = f"{MARK}.{hashlib.sha256(name.encode()).hexdigest()[:12]}.{claims.this_run()}"
        labels = {_NAME: name, _IMAGE: image, _BEFORE: before}
        self._client.api.create_container(image, ["none"], name=mark, labels=labels)
        try:
            engine.tag(self._client, image, name)
            yield
        finally:
            with contextlib.suppress(DockerException):
                _unname(self._client, labels)
            engine.remove(self._client, mark)


def _unname(client: docker.DockerClient, labels: Mapping[str, str]) -> None:
    """Takes a push's name from its image again, unless it is the image's only one; what had the name before gets it back."""
    name, before = labels[_NAME], labels[_BEFORE]
    if not engine.exists(client, name):
        return
    image = client.api.inspect_image(name)
    if image["Id"] != labels[_IMAGE]:
        return  # somebody has given it since
    if before and engine.exists(client, before):
        engine.tag(client, before, name)
    elif set(image["RepoTags"]) - {name}:
        client.api.remove_image(name, noprune=True)


def sweep(client: docker.DockerClient) -> None:
    """Takes away the names that killed pushes have left on an engine."""
    for container in client.api.containers(all=True, filters={"name": MARK}):
        if engine.ended(container):
            _unname(client, container["Labels"])
            engine.remove(client, container["Id"])
