"""An image under test: its containers as the platform would run them, and what the clauses' tests ask of them."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import socket
import ssl
import tarfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any, cast

import docker
from docker.types import Mount

PORT = 8080
MODEL = "/home/mind/model"
RUN = "/home/mind/run.sh"
CA = "/home/ma-user/.serving/tls/ca.crt"
LABEL = "io.modelarts.engine."
KEEP_ALIVE = "infinity"
WRITABLE = ("/tmp", "/run", "/home/ma-user")
ROOT, MA_USER = (0, 0), (1000, 100)
GB = 1_000_000_000


def eventually(what: str, test: Callable[[], Any], seconds: float) -> Any:
    """The first truthy value of `test`. A refused or broken connection is one not yet.

    :raises AssertionError: there was none within `seconds`; the message is `what` and what was seen last.
    """
    end = time.monotonic() + seconds
    seen: object = None
    while True:
        try:
            seen = test()
            if seen:
                return seen
        except (OSError, http.client.HTTPException) as error:
            seen = error
        if time.monotonic() > end:
            raise AssertionError(f"{what}: not within {seconds:.0f} s (last: {seen})")
        time.sleep(0.05)


@dataclass
class Request:
    """What the engine is asked: method, path, a JSON body and a regular expression that the answer's body must hold."""

    method: str
    path: str
    body: Any = None
    expect: str = ""

    @classmethod
    def load(cls, path: Path) -> Request:
        """Reads a JSON file with the fields' names.

        :raises ValueError: it is something else.
        """
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: a JSON object with method, path, body and expect is needed ({error})") from error

    @classmethod
    def of(cls, asked: Any) -> Request:
        """The request that the role of an image's engine brings (`rehearsal.Rehearsal`)."""
        exchange = asked.exchange
        return cls(exchange.method, exchange.path, exchange.filled(asked.question, 64), asked.expect)

    def encoded(self) -> bytes | None:
        """The body as it is sent."""
        return None if self.body is None else json.dumps(self.body).encode()


@dataclass
class Answer:
    """A response, read to its end."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def __str__(self) -> str:
        return f"{self.status} {self.body[:300].decode(errors='replace')}"


@dataclass
class Process:
    """One process of a container, as the container sees it."""

    pid: int
    parent: int
    uids: list[int]
    gids: list[int]
    capabilities: int
    no_new_privileges: bool
    command: str


class Running:
    """A container of the image; requests go to its port on loopback, its certificate verified.

    :ivar first: the answer to the request that followed the first good news of `/health` at once.
    """

    def __init__(self, container: Any) -> None:
        self.container = container
        self.first: Answer | None = None

    def status(self) -> str:
        """The engine's word for the container's state."""
        self.container.reload()
        return str(self.container.status)

    def logs(self, *, stdout: bool = True, stderr: bool = True) -> str:
        """What the container has said so far."""
        return cast(bytes, self.container.logs(stdout=stdout, stderr=stderr)).decode(errors="replace")

    def last_words(self) -> str:
        """The end of the log, for messages."""
        return "\n".join(self.logs().splitlines()[-12:])

    def run(self, *command: str, user: str = "") -> str:
        """Output of a command in the container.

        :raises AssertionError: it failed.
        """
        code, (out, err) = self.container.exec_run(list(command), user=user, demux=True)
        assert code == 0, f"{' '.join(command)}: exit code {code}: {(err or out or b'').decode(errors='replace')}"
        return cast(bytes, out or b"").decode(errors="replace")

    def files(self, path: str) -> list[str]:
        """Names in the container's own file system below `path`, which comes first; it need not run."""
        pieces, _ = self.container.get_archive(path)
        with tarfile.open(fileobj=cast(Any, _Stream(pieces)), mode="r|") as archive:
            return archive.getnames()

    def port(self) -> int:
        """The loopback port that leads to 8080."""
        self.container.reload()
        bindings = self.container.ports.get(f"{PORT}/tcp")
        if not bindings:
            raise ConnectionRefusedError(f"the container is {self.container.status}")
        return int(bindings[0]["HostPort"])

    def ca(self) -> str:
        """The CA certificate that the container made at its start, PEM."""
        code, output = self.container.exec_run(["cat", CA])
        if code != 0:
            raise ConnectionRefusedError(f"{CA} is not there yet")
        return cast(bytes, output).decode()

    def context(self) -> ssl.SSLContext:
        """Verifies against the container's own CA."""
        return ssl.create_default_context(cadata=self.ca())

    def connect(self, timeout: float = 60.0) -> http.client.HTTPSConnection:
        """A TLS connection to `https://localhost`, made and verified."""
        connection = http.client.HTTPSConnection("localhost", self.port(), timeout=timeout, context=self.context())
        connection.connect()
        return connection

    def socket(self, context: ssl.SSLContext, name: str = "localhost") -> ssl.SSLSocket:
        """A TLS handshake by the rules of `context`."""
        return context.wrap_socket(
            socket.create_connection(("127.0.0.1", self.port()), timeout=10), server_hostname=name
        )

    def ask(self, method: str, path: str, body: bytes | None = None, timeout: float = 60.0) -> Answer:
        """One request over a connection of its own."""
        with contextlib.closing(self.connect(timeout)) as connection:
            return answer(connection, method, path, body)

    def health(self) -> Answer:
        """What the platform's probe gets."""
        return self.ask("GET", "/health", timeout=10)

    def healthy(self) -> bool:
        """Whether the probe would be content.

        :raises AssertionError: the container has ended, so that it never will be.
        """
        state = self.status()
        if state not in ("created", "running"):
            raise AssertionError(f"the container has {state} with exit code {self.exit_code()}")
        return self.health().status == http.HTTPStatus.OK

    def exit_code(self) -> int:
        """The exit code; 0 while it runs, too."""
        self.container.reload()
        return int(self.container.attrs["State"]["ExitCode"])

    def wait_end(self, seconds: float) -> int:
        """Waits until the container has ended; returns its exit code."""
        eventually("the container ends", lambda: self.status() in ("exited", "dead"), seconds)
        return self.exit_code()

    def processes(self) -> list[Process]:
        """All processes, read from /proc because the image need not have ps."""
        script = (
            "for p in /proc/[0-9]*; do [ -r $p/status ] || continue; printf '\\001%s ' ${p#/proc/}; "
            "tr '\\0\\n' '  ' <$p/cmdline; echo; cat $p/status; done 2>/dev/null; true"
        )
        found = []
        for entry in self.run("sh", "-c", script).split("\1")[1:]:
            head, _, rest = entry.partition("\n")
            fields = dict(line.split(":\t", 1) for line in rest.splitlines() if ":\t" in line)
            pid, _, command = head.partition(" ")
            if "Uid" not in fields or "for p in /proc/" in command:
                continue
            found.append(
                Process(
                    pid=int(pid),
                    parent=int(fields["PPid"]),
                    uids=[int(number) for number in fields["Uid"].split()],
                    gids=[int(number) for number in fields["Gid"].split()],
                    capabilities=int(fields["CapEff"], 16),
                    no_new_privileges=fields["NoNewPrivs"].strip() == "1",
                    command=command.strip(),
                )
            )
        return found

    def proxy(self) -> Process:
        """The process that nginx' workers belong to."""
        masters = [process for process in self.processes() if process.command.startswith("nginx: master")]
        assert masters, f"no nginx runs:\n{self.last_words()}"
        return masters[0]

    def engine(self) -> Process:
        """The process that listens where the proxy sends requests to."""
        port = self.nginx().upstream()[1]
        script = (
            f"inode=$(awk '$2 ~ /:{port:04X}$/ && $4 == \"0A\" {{ print $10; exit }}' /proc/net/tcp /proc/net/tcp6); "
            '[ -n "$inode" ] || exit 0; for fd in /proc/[0-9]*/fd/*; do '
            '[ "$(readlink $fd)" != "socket:[$inode]" ] || echo "$fd"; done; true'
        )
        holders = sorted({int(line.split("/")[2]) for line in self.run("sh", "-c", script).split()})
        assert holders, f"nothing listens on port {port}"
        return next(process for process in self.processes() if process.pid == holders[0])

    def nginx(self) -> Nginx:
        """The proxy's effective configuration."""
        return Nginx(self.run("nginx", "-T", "-q"))

    def signal(self, process: Process, name: str) -> None:
        """Sends a signal to one process inside."""
        self.run("sh", "-c", f"kill -s {name} {process.pid}")

    def remove(self) -> None:
        """Removes the container and what it wrote."""
        with contextlib.suppress(docker.errors.NotFound):
            self.container.remove(force=True, v=True)


def answer(connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> Answer:
    """One request over an open connection, which stays open."""
    connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
    response = connection.getresponse()
    return Answer(response.status, response.headers, response.read())


class Nginx:
    """nginx' configuration, read from what `nginx -T` prints.

    A block is a list of directives; a directive is a list of words and, at its end, the block that it opens.
    """

    def __init__(self, text: str) -> None:
        words = re.findall(r"#[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|[{};]|(?:\\.|[^\s{};\"'])+", text)
        self.main = self._block(iter([word for word in words if not word.startswith("#")]))

    def _block(self, words: Iterator[str]) -> list[list[Any]]:
        block: list[list[Any]] = []
        directive: list[Any] = []
        for word in words:
            if word == "}":
                break
            if word == "{":
                directive.append(self._block(words))
            elif word != ";":
                directive.append(word.strip("\"'"))
                continue
            if directive:
                block.append(directive)
                directive = []
        return block

    def levels(self) -> list[list[list[Any]]]:
        """The blocks around an ordinary request, outermost first: http, server, location /."""
        http_block = next(entry[-1] for entry in self.main if entry[0] == "http")
        server = next(entry[-1] for entry in http_block if entry[0] == "server")
        location = next(entry[-1] for entry in server if entry[:-1] == ["location", "/"])
        return [http_block, server, location]

    def value(self, name: str, default: str) -> str:
        """What an ordinary request meets: the innermost setting of a directive, its words joined."""
        for level in reversed(self.levels()):
            for entry in level:
                if entry[0] == name:
                    return " ".join(entry[1:])
        return default

    def all(self, name: str) -> list[str]:
        """Every setting of a directive, wherever it is."""

        def walk(block: list[list[Any]]) -> Iterator[str]:
            for entry in block:
                if isinstance(entry[-1], list):
                    yield from walk(entry[-1])
                elif entry[0] == name:
                    yield " ".join(entry[1:])

        return list(walk(self.main))

    def seconds(self, name: str, default: str) -> float:
        """A directive's time."""
        number, unit = re.fullmatch(r"(\d+)(ms|s|m|h|d)?", self.value(name, default).split()[0]).groups()  # type: ignore[union-attr]
        return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}[unit or "s"]

    def upstream(self) -> tuple[str, int]:
        """Host and port of the engine."""
        name = re.sub(r"^https?://|/.*$", "", self.value("proxy_pass", ""))
        for entry in self.levels()[0]:
            if entry[:2] == ["upstream", name]:
                name = next(line[1] for line in entry[-1] if line[0] == "server")
        host, _, port = name.partition(":")
        return host, int(port or 80)


@dataclass
class Contract:
    """One image, the model it is tried with, and the containers started so far.

    :ivar request: what shows that the engine serves the model.
    :ivar wait: seconds a container may take until it is healthy.
    """

    client: docker.DockerClient
    image: str
    model: Path
    request: Request
    wait: float
    attributes: dict[str, Any] = field(default_factory=dict)
    run: str = field(default_factory=lambda: f"modelarts-engine-verify-{uuid.uuid4().hex[:8]}")
    _running: dict[str, Running] = field(default_factory=dict)
    _broken: dict[str, str] = field(default_factory=dict)
    _all: list[Running] = field(default_factory=list)
    _volumes: dict[tuple[int, int], Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.attributes = self.client.api.inspect_image(self.image)

    @property
    def config(self) -> dict[str, Any]:
        """The image's configuration."""
        return cast(dict[str, Any], self.attributes["Config"])

    def volume(self, owner: tuple[int, int]) -> str:
        """A volume with a copy of the model's folder, everything in it owned as given."""
        if owner not in self._volumes:
            volume = self.client.volumes.create(f"{self.run}-{owner[0]}", labels={LABEL + "verify": self.run})
            self._volumes[owner] = volume
            holder = self.client.api.create_container(
                self.image,
                command=["true"],
                entrypoint=[],
                host_config=self.client.api.create_host_config(mounts=[Mount(MODEL, volume.name, type="volume")]),
            )
            try:
                reader, writer = os.pipe()
                with os.fdopen(reader, "rb") as packed:
                    packer = threading.Thread(target=_pack, args=(self.model, owner, writer))
                    packer.start()
                    self.client.api.put_archive(holder["Id"], str(PurePosixPath(MODEL).parent), packed)
                    packer.join()
            finally:
                self.client.api.remove_container(holder["Id"], force=True)
        return cast(str, self._volumes[owner].name)

    def start(self, kind: str) -> Running:
        """Starts a container, healthy or not.

        * `platform`: as ModelArts starts it, with no more than it gives
        * `bash`: the same, the start command read by bash
        * `bare`: the same, without a model
        * `local root`, `local ma-user`: as the platform's documentation checks it locally, the mount owned by either
        """
        words = kind.split()
        options: dict[str, Any] = {"mounts": []}
        if words[0] == "local":
            owner = ROOT if words[1] == "root" else MA_USER
            options["mounts"] = [Mount(MODEL, self.volume(owner), type="volume")]
        else:
            if kind != "bare":
                options["mounts"] = [Mount(MODEL, self.volume(ROOT), type="volume", read_only=True)]
            options.update(
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges"],
                tmpfs=dict.fromkeys(WRITABLE, ""),
                shm_size="64m",
            )
        container = self.client.containers.create(
            self.image,
            command=["bash", RUN] if kind == "bash" else None,
            name=f"{self.run}-{len(self._all)}",
            user="1000:100",
            ports={f"{PORT}/tcp": ("127.0.0.1", None)},
            labels={LABEL + "verify": self.run},
            **options,
        )
        running = Running(container)
        self._all.append(running)
        container.start()
        return running

    def get(self, kind: str) -> Running:
        """A healthy container of this kind, started once and shared by the tests that leave it as it is.

        :raises AssertionError: it did not become healthy; the message ends with its last words.
        """
        assert kind not in self._broken, self._broken[kind]
        running = self._running.get(kind)
        if running is None or running.status() != "running":
            running = self._running[kind] = self.start(kind)
        try:
            eventually(f"/health on port {PORT} over TLS answers 200", running.healthy, self.wait)
        except AssertionError as error:
            words = running.last_words()
            self._broken[kind] = f"{kind}: {error}; it said: {words.rpartition(chr(10))[2]}\n{words}"
            raise AssertionError(self._broken[kind]) from None
        if running.first is None:
            running.first = running.ask(self.request.method, self.request.path, self.request.encoded())
        return running

    def take(self, kind: str) -> Running:
        """A healthy container of this kind for a test that uses it up."""
        running = self.get(kind)
        del self._running[kind]
        return running

    def ask(self, running: Running) -> Answer:
        """Sends the request that shows that the model is served, and checks the answer.

        :raises AssertionError: it was not the one expected.
        """
        got = running.ask(self.request.method, self.request.path, self.request.encoded())
        self.check(got)
        return got

    def check(self, got: Answer) -> None:
        """Whether an answer to the request is the one expected."""
        assert got.status == http.HTTPStatus.OK, f"{self.request.method} {self.request.path}: {got}"
        assert re.search(self.request.expect, got.body.decode(errors="replace")), f"no {self.request.expect!r} in {got}"

    def model_bytes(self) -> int:
        """Size of the model's folder, in bytes."""
        return sum(path.lstat().st_size for path in self.model.rglob("*") if path.is_file())

    def inspect_layers(self, judge: Callable[[tarfile.TarInfo, IO[bytes] | None], str | None]) -> list[str]:
        """What `judge` says of the files in the layers, empty answers left out.

        The layers of the base are somebody else's. The history tells a stage's layer by the command of its
        build container; where it tells of none, every layer counts.

        :param judge: gets an entry and, for a regular file, its content.
        """
        history = [str(entry["CreatedBy"]) for entry in reversed(self.client.api.history(self.attributes["Id"]))]
        layers = self.attributes["RootFS"]["Layers"]
        ours = len(history) - history.index(KEEP_ALIVE) if KEEP_ALIVE in history else len(layers)
        base = layers[: len(layers) - ours]
        said: list[str] = []
        with tarfile.open(
            fileobj=cast(Any, _Stream(self.client.api.get_image(self.attributes["Id"]))), mode="r|"
        ) as image:
            for member in image:
                is_layer = member.isfile() and (member.name.endswith("/layer.tar") or member.name.startswith("blobs/"))
                content = image.extractfile(member) if is_layer else None
                if content is None:
                    continue
                layer = _Stream(iter(lambda content=content: content.read(1 << 20), b""))  # type: ignore[misc]
                found: list[str] = []
                with (
                    contextlib.suppress(tarfile.ReadError),
                    tarfile.open(fileobj=cast(Any, layer), mode="r|*") as entries,
                ):
                    for entry in entries:
                        entry.name = entry.name.removeprefix("./")
                        verdict = judge(entry, entries.extractfile(entry) if entry.isreg() else None)
                        found += [f"{entry.name}: {verdict}"] if verdict else []
                if f"sha256:{layer.digest()}" not in base:
                    said += found
        return said

    def close(self) -> None:
        """Removes all that was started."""
        for running in self._all:
            running.remove()
        for volume in self._volumes.values():
            volume.remove(force=True)


class _Stream:
    """A file-like view of an iterator of pieces that hashes what passes."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.pieces = pieces
        self.rest = b""
        self.sha256 = hashlib.sha256()

    def read(self, size: int) -> bytes:
        while len(self.rest) < size:
            piece = next(self.pieces, b"")
            if not piece:
                break
            self.sha256.update(piece)
            self.rest += piece
        taken, self.rest = self.rest[:size], self.rest[size:]
        return taken

    def digest(self) -> str:
        """The hash of everything; what was not read yet is read now."""
        for piece in self.pieces:
            self.sha256.update(piece)
        return self.sha256.hexdigest()


def _pack(folder: Path, owner: tuple[int, int], descriptor: int) -> None:
    """Writes a folder as a tar archive to a pipe, owner and readable modes given to everything."""

    def own(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid, info.gid = owner
        info.uname = info.gname = ""
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with (
        contextlib.suppress(BrokenPipeError),
        os.fdopen(descriptor, "wb") as pipe,
        tarfile.open(fileobj=pipe, mode="w|") as tar,
    ):
        tar.add(folder, arcname=PurePosixPath(MODEL).name, filter=own)
