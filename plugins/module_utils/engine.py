# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Build containers and stage images on one container engine.

Stage images are `modelarts-engine/stage:<key>`. A build container has no label of its own (labels of a container go into what is
committed from it); its name tells who owns it: `modelarts-engine-build.<image>.<stage>.<where>.<pid>.<start time>`.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import http.client
import io
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import docker
import requests.exceptions
from ansible_collections.modelarts.engine.plugins.module_utils import claims, keys
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

REPOSITORY = "modelarts-engine"
STAGE = f"{REPOSITORY}/stage"
PROVEN = f"{REPOSITORY}/proven"
LABEL = "io.modelarts.engine."
CONTAINER = f"{REPOSITORY}-build"
PING_SECONDS, COMMIT_SECONDS, PICK_SECONDS = 20, 600, 3600

# Nothing written here is part of an image: the build's own traces, on memory or a volume. /tmp is a volume because the engine
# copies files into a container's root file system underneath a tmpfs mount, where they are not seen and would be committed.
TMPFS = ("/run", "/root", "/var/cache/apt", "/var/lib/apt/lists", "/var/log")
VOLUME = "/tmp"  # noqa: S108
CA_BUNDLE = f"{VOLUME}/build-ca.crt"
# What a builder leaves for the image is in `OUTPUTS`, and a stage that takes it finds it in `TAKEN`. Caches that outlive a build are
# the engine's volumes, each in a folder of its name.
OUTPUTS = "/opt/outputs"
TAKEN = f"{VOLUME}/outputs"
CACHES = f"{VOLUME}/cache"
CACHE_VOLUME = f"{REPOSITORY}-cache"

# Copies what is named by shell patterns into a folder, and says what is not there.
PICK = """\
to=$1 code=0
shift
for pattern; do
  for path in $pattern; do
    if [ -e "$path" ] || [ -L "$path" ]; then
      mkdir -p "$to${path%/*}" && cp -a "$path" "$to$path" || code=1
    else
      echo "there is no $path" && code=1
    fi
  done
done
exit $code
"""

# How each tool of a build is told which certificates to trust; the files lie on the container's volume.
CA_APT = f"{VOLUME}/build-ca.apt.conf"
CA_WGET = f"{VOLUME}/build-ca.wgetrc"
CA_ENVIRONMENT = {
    **dict.fromkeys(
        ("SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "GIT_SSL_CAINFO", "NODE_EXTRA_CA_CERTS", "CARGO_HTTP_CAINFO"),
        CA_BUNDLE,
    ),
    "APT_CONFIG": CA_APT,
    "WGETRC": CA_WGET,
}  # fmt: skip

# What package tools and the dynamic linker leave behind and make again when they need it.
DROPPINGS = "rm -rf /var/cache/debconf/*-old /var/cache/ldconfig/aux-cache /var/lib/dpkg/*-old /var/lib/apt/extended_states.old /etc/*- /etc/.pwd.lock"

ALLOWED = (
    "/usr",
    "/etc",
    "/opt",
    "/home",
    "/bin",
    "/sbin",
    "/lib",
    "/lib64",
    "/var/lib",
    "/var/cache/debconf",
    "/var/www",
    "/srv",
)
TRACE_NAMES = {"__pycache__", ".ansible", ".cache", ".bash_history", ".pip"}
# Bytecode that a role compiles for what it puts into /opt belongs to it; anywhere else an import has left it behind.
COMPILED = "/opt/"
TRACE_FILES = (".pyc", ".dpkg-new", ".dpkg-tmp")
SECRET_FILES = (".pem", ".key", ".p12", ".pfx")
PUBLIC_FILES = ("/certifi/cacert.pem",)
NO_SECRET = ("/usr/share/", "/usr/lib/", "/etc/ssl/certs/")


class EngineError(Exception):
    """The engine refused or could not be reached; the message says what and where."""


class UnreachableError(EngineError):
    """No engine answers."""


class NoImageError(EngineError):
    """The engine has no image of the name that was given."""


class TraceError(EngineError):
    """A build container holds files that must not be committed."""


def message(error: Exception) -> str:
    """What the engine says, without the SDK's wrapping."""
    return getattr(error, "explanation", None) or str(error)


@functools.lru_cache(maxsize=8)
def connect(url: str) -> docker.DockerClient:
    """A client of the engine at `url` (`unix:///var/run/docker.sock`).

    :raises EngineError: nothing answers there.
    """
    try:
        client = docker.DockerClient(base_url=url, timeout=PING_SECONDS)
        client.ping()
        client.api.timeout = COMMIT_SECONDS
    except (DockerException, requests.exceptions.RequestException) as error:
        raise UnreachableError(
            f"no container engine answers at {url}: {message(error)}; start it, see that this user may use its socket, "
            "or give its address: --engine-url, or build_host_engine_url where there is an inventory"
        ) from error
    return client


def container_name(image: str, stage: str) -> str:
    """Name of the build container that this process's playbook run owns."""
    return f"{CONTAINER}.{image}.{stage}.{claims.this_run()}"


def ended(container: Mapping[str, Any]) -> bool:
    """Whether the run that made a container is gone. The last three parts of its name tell the run; the others may hold dots, too."""
    owner = ".".join(container["Names"][0].split(".")[-3:])
    # Of a run that cannot be seen from here nothing is known but its age.
    return bool(time.time() - container["Created"] > 86_400) if claims.foreign(owner) else not claims.alive(owner)


def reap(client: docker.DockerClient) -> list[str]:
    """Removes build containers (with their volumes) whose run is gone, and stage images that never got their tag."""
    gone = []
    for container in client.api.containers(all=True, filters={"name": CONTAINER}):
        if ended(container):
            gone.append(container["Names"][0].removeprefix("/"))
            remove(client, gone[-1])
    for image in client.api.images(filters={"dangling": True, "label": LABEL + "key"}):
        if time.time() - image["Created"] > 60:
            # A child, or a commit under way in another run, holds it: then it is not ours to remove.
            with contextlib.suppress(APIError):
                client.api.remove_image(image["Id"])
    return gone


def find(client: docker.DockerClient, key: str) -> dict[str, Any] | None:
    """The stage image of a key, or None. The exact tag is looked up and its own label and layers are checked, since labels are inherited by children."""
    try:
        image: dict[str, Any] = client.api.inspect_image(f"{STAGE}:{key}")
    except ImageNotFound:
        return None
    labels = image["Config"].get("Labels") or {}
    layers = image["RootFS"].get("Layers") or []
    own = labels.get(LABEL + "key") == key and labels.get(LABEL + "parent-layers") == keys.digest(layers[:-1])
    return image if own else None


def exists(client: docker.DockerClient, reference: str) -> bool:
    """Whether the engine has an image of that reference."""
    try:
        client.api.inspect_image(reference)
    except ImageNotFound:
        return False
    return True


def find_image(client: docker.DockerClient, image: str) -> str:
    """The image's reference: `triton` is short for `modelarts-engine/triton:latest`.

    :raises NoImageError: the engine has no such image.
    """
    names = [image] if "/" in image or ":" in image else [f"{REPOSITORY}/{image}:latest", image]
    for name in names:
        if exists(client, name):
            return name
    known = sorted(
        {
            tag
            for each in client.images.list()
            for tag in each.tags
            if tag.startswith(REPOSITORY + "/") and tag.endswith(":latest")
        }
    )
    raise NoImageError(
        f"the engine has no image {image}; {'it has ' + ', '.join(known) if known else 'build one first: ./runner.py build triton'}"
    )


def tag(client: docker.DockerClient, reference: str, name: str) -> None:
    """Gives an image another name, `repository:tag`."""
    repository, _, version = name.rpartition(":")
    client.api.tag(reference, repository, version)


def _outputs(client: docker.DockerClient, image: str, giver: str, paths: Iterable[str]) -> docker.types.Mount:
    """The outputs of a builder's stage image as a mount. The engine copies them into a volume of the container `giver`, which goes with it.

    :param paths: of an image that is no builder's, what is copied there, under the same names.
    """
    remove(client, giver)
    volume = client.api.create_host_config(
        mounts=[docker.types.Mount(OUTPUTS, None, type="volume")], network_mode="none"
    )
    client.api.create_container(
        image,
        entrypoint=["sh"],
        command=["-uc", PICK, "pick", OUTPUTS, *paths],
        user="0:0",
        name=giver,
        host_config=volume,
        labels={},
        healthcheck={"test": ["NONE"]},
    )
    if paths:
        client.api.start(giver)
        if client.api.wait(giver, timeout=PICK_SECONDS)["StatusCode"]:
            said = client.api.logs(giver).decode(errors="replace").strip().splitlines()[-8:]
            raise EngineError(
                f"{image} cannot give what a stage takes of it: {'; '.join(said)}. See that the digest is that of the image that was meant"
            )
    (made,) = [mount for mount in client.api.inspect_container(giver)["Mounts"] if mount["Destination"] == OUTPUTS]
    return docker.types.Mount(TAKEN, made["Name"], type="volume", read_only=True)


def start(
    client: docker.DockerClient,
    *,
    parent: str,
    name: str,
    ca_bundle: str = "",
    network: str = "bridge",
    caches: Iterable[str] = (),
    outputs: str = "",
    paths: Iterable[str] = (),
    giver: str = "",
) -> None:
    """Starts a build container of the parent image.

    :param ca_bundle: a PEM file on the controller; with the base's own certificates it becomes `CA_BUNDLE` on the container's volume.
    :param caches: names of caches that are mounted.
    :param outputs: a builder's stage image whose outputs are mounted; the container `giver` keeps them.
    :param paths: shell patterns of what is taken of an image that is no builder's, instead.
    """
    remove(client, name)
    mounts = [docker.types.Mount(VOLUME, None, type="volume")]
    mounts += [docker.types.Mount(f"{CACHES}/{each}", f"{CACHE_VOLUME}-{each}", type="volume") for each in caches]
    if outputs:
        mounts.append(_outputs(client, outputs, giver, paths))
    host = client.api.create_host_config(
        tmpfs=dict.fromkeys(TMPFS, "exec,mode=755"), mounts=mounts, network_mode=network
    )
    container = client.api.create_container(
        parent,
        command=["infinity"],
        entrypoint=["sleep"],
        name=name,
        host_config=host,
        labels={},
        healthcheck={"test": ["NONE"]},
    )
    try:
        client.api.start(container["Id"])
    except APIError as error:
        remove(client, name)
        raise EngineError(f"the base {parent} cannot run `sleep`: {message(error)}") from error
    if ca_bundle:
        _trust(client, name, Path(ca_bundle).read_bytes())


def _trust(client: docker.DockerClient, name: str, bundle: bytes) -> None:
    """Puts a CA bundle and the files that point tools to it on a build container's volume. What the base trusts stays trusted."""
    files = {
        f"{CA_BUNDLE}.site": bundle,
        CA_APT: f'Acquire::https::CAInfo "{CA_BUNDLE}";\n'.encode(),
        CA_WGET: f"ca_certificate = {CA_BUNDLE}\n".encode(),
    }
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(PurePosixPath(path).name)
            entry.size, entry.mode = len(content), 0o644
            tar.addfile(entry, io.BytesIO(content))
    client.api.put_archive(name, VOLUME, blob.getvalue())
    join = f"cat /etc/ssl/certs/ca-certificates.crt {CA_BUNDLE}.site 2>/dev/null >{CA_BUNDLE}; test -s {CA_BUNDLE}"
    code, output = execute(client, name, ["sh", "-c", join])
    if code:
        raise EngineError(f"the CA bundle could not be put into {name}: {output.strip()}")


def execute(
    client: docker.DockerClient,
    name: str,
    command: list[str],
    user: str = "0:0",
    environment: Mapping[str, str] | None = None,
) -> tuple[int, str]:
    """Runs a command in a container; returns its exit code and what it printed."""
    job = client.api.exec_create(name, command, user=user, environment=dict(environment or {}))
    output = client.api.exec_start(job["Id"]).decode(errors="replace")
    return client.api.exec_inspect(job["Id"])["ExitCode"], output


def remove(client: docker.DockerClient, name: str) -> None:
    """Removes a container and its volumes; one that is not there is fine, and so is another who is removing it."""
    with contextlib.suppress(NotFound):
        try:
            client.api.remove_container(name, force=True, v=True)
        except APIError as error:
            if error.status_code != http.client.CONFLICT:
                raise
            client.api.wait(name, condition="removed", timeout=PING_SECONDS)


def traces(changes: list[dict[str, Any]], foreign: Iterable[str] = ()) -> list[str]:
    """Paths of a container's diff that must not be committed.

    :param changes: as the engine's `GET /containers/{id}/changes` gives them: `Path`, and `Kind` 0 changed, 1 added, 2 deleted.
    :param foreign: shell patterns of further paths that are not the image's.
    """
    bad = []
    ours = {*TMPFS, VOLUME}
    for change in changes:
        path = change["Path"]
        name = PurePosixPath(path).name
        if change["Kind"] == 2 or path in ours or any(mount.startswith(path + "/") for mount in ours):
            continue
        inside = any(path == top or path.startswith(top + "/") for top in ALLOWED) or any(
            top.startswith(path + "/") for top in ALLOWED
        )
        secret = name.endswith(SECRET_FILES) and not path.startswith(NO_SECRET) and not path.endswith(PUBLIC_FILES)
        if path.startswith(COMPILED) and (name == "__pycache__" or name.endswith(".pyc")):
            continue
        borrowed = any(fnmatch.fnmatchcase(path, pattern) for pattern in foreign)
        if not inside or secret or borrowed or name.endswith(TRACE_FILES) or TRACE_NAMES & set(path.split("/")):
            bad.append(path)
    return sorted(bad)


def commit(
    client: docker.DockerClient,
    *,
    name: str,
    parent: str,
    key: str,
    labels: Mapping[str, str],
    config: Mapping[str, Any],
    foreign: Iterable[str] = (),
    checked: bool = True,
) -> dict[str, Any]:
    """Commits a build container as one layer on its parent, checks the result and only then tags it.

    :param config: of the image in the engine API's words (`User`, `Cmd`, …); what it leaves out stays as the parent has it.
    :param foreign: shell patterns of paths that the build borrowed and the image must not have.
    :param checked: whether it must be free of a build's traces; a builder's stage, of which nothing but its outputs is shipped, need not.
    :returns: `id`, and `bytes` that the new layer adds.
    :raises TraceError: the container holds what must not be committed.
    """
    execute(client, name, ["sh", "-c", DROPPINGS])
    bad = traces(client.api.diff(name) or [], foreign) if checked else []
    if bad:
        shown = ", ".join(bad[:8]) + (f" and {len(bad) - 8} more" if len(bad) > 8 else "")
        raise TraceError(
            f"the roles left traces that do not belong in an image: {shown}; remove them in the role that wrote them"
        )
    before = client.api.inspect_image(parent)
    base = before["Config"] or {}
    layers = before["RootFS"].get("Layers") or []
    wanted = {
        "Entrypoint": base.get("Entrypoint") or [],
        "Cmd": base.get("Cmd") or [],
        "Healthcheck": base.get("Healthcheck") or {"Test": ["NONE"]},
        **config,
        "Labels": {
            **(base.get("Labels") or {}),
            **(config.get("Labels") or {}),
            **labels,
            LABEL + "key": key,
            LABEL + "parent-layers": keys.digest(layers),
        },
    }
    made = client.api.commit(name, conf=wanted)["Id"]
    after = client.api.inspect_image(made)
    wrong = [
        field
        for field, value in wanted.items()
        if field in config and not _kept(field, value, after["Config"].get(field))
    ]
    if wrong or (after["RootFS"].get("Layers") or [])[:-1] != layers:
        client.api.remove_image(made)
        raise EngineError(
            f"the engine committed {name} otherwise than asked ({', '.join(wrong) or 'layers'}); nothing was tagged"
        )
    client.api.tag(made, STAGE, key)
    return {"id": made, "bytes": after["Size"] - before["Size"]}


def _kept(field: str, wanted: Any, got: Any) -> bool:
    """Whether a setting came out as asked. A commit cannot take back what the base declares as exposed."""
    if field == "ExposedPorts":
        return set(wanted) <= set(got or {})
    return bool((got or type(wanted)()) == wanted)


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turns the SDK's errors into `EngineError`."""
    try:
        yield
    except requests.exceptions.ConnectionError as error:
        raise UnreachableError(f"the container engine is gone: {message(error)}") from error
    except (DockerException, requests.exceptions.RequestException) as error:
        raise EngineError(f"the container engine failed: {message(error)}") from error
