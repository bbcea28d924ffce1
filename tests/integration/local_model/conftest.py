"""The image with Triton and the runtime, the model folder, and servers run as the platform would run them."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.bases import base_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
REPOSITORY = "modelarts-engine/local-model-test"
CLIENT = (HERE / "client.py").read_text()

BYTES, UINT32, FP32, UINT64 = "BYTES", "UINT32", "FP32", "UINT64"


def tensor(name: str, kind: str, *data: Any, shape: list[int] | None = None) -> dict[str, Any]:
    """One input of a request, of shape [1, number of values] unless told otherwise."""
    return {"name": name, "datatype": kind, "shape": shape or [1, len(data)], "data": list(data)}


def tutorial(text: str = "what is machine learning", tokens: int = 64, bad: Any = "", stop: Any = "") -> dict[str, Any]:
    """The tutorial's request, to the letter unless values are given. Words: a string, or a list for dimension two."""
    words = {"bad_words": bad, "stop_words": stop}
    lists = [tensor(name, BYTES, *([value] if isinstance(value, str) else value)) for name, value in words.items()]
    ids = [tensor(name, UINT32, 2) for name in ("pad_id", "end_id")]
    inputs = [tensor("text_input", BYTES, text), tensor("max_tokens", UINT32, tokens), *lists, *ids]
    return {"inputs": inputs, "outputs": [{"name": "text_output"}]}


@dataclass
class Answer:
    """What came back: events are pairs of seconds since the request and the data of a line."""

    status: int
    text: str
    seconds: float
    events: list[tuple[float, dict[str, Any]]] = field(default_factory=list)

    @property
    def output(self) -> str:
        """The generated text, of one response or of all events."""
        assert self.status == 200, self.text
        if self.events:
            return "".join(event["text_output"] for _, event in self.events)
        (output,) = json.loads(self.text)["outputs"]
        assert (output["name"], output["datatype"], len(output["data"])) == ("text_output", BYTES, 1)
        return str(output["data"][0])

    @property
    def error(self) -> str:
        assert self.status >= 400, (self.status, self.text)
        return str(self.events[0][1]["error"] if self.events else json.loads(self.text)["error"])


@dataclass
class Stub:
    """A process of a Python model, and the processor time it has used, in clock ticks."""

    pid: int
    ticks: int


class Server:
    """A container that serves a model folder."""

    def __init__(self, container: Any) -> None:
        self.container = container

    def send(self, method: str, path: str, body: Any = None, **more: Any) -> Answer:
        """Send a request from inside the container, where alone the server can be reached."""
        task = {
            "method": method,
            "path": path,
            "body": body if isinstance(body, str | None) else json.dumps(body),
            **more,
        }
        return Answer(**json.loads(self.python(CLIENT, json.dumps(task))))

    def python(self, script: str, text: str = "") -> str:
        """Run a script inside the container with `text` as its input; return its output."""
        command = ["docker", "exec", "-i", self.container.id, "python3", "-B", "-c", script]
        result = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if result.returncode:
            raise ConnectionError(result.stderr)
        return result.stdout

    def infer(self, request: Any = None, **values: Any) -> Answer:
        return self.send("POST", "/v2/models/ensemble/infer", request if request is not None else tutorial(**values))

    def stream(
        self, text: str = "what is machine learning", tokens: int = 64, leave_after: int | None = None, **more: Any
    ) -> Answer:
        body = {"text_input": text, "max_tokens": tokens, **more}
        return self.send("POST", "/v2/models/ensemble_stream/generate_stream", body, leave_after=leave_after)

    def ready(self) -> bool:
        return self.send("GET", "/v2/health/ready").status == 200

    def run(self, script: str, **options: Any) -> str:
        code, output = self.container.exec_run(["sh", "-c", script], **options)
        assert code == 0, output.decode()
        return str(output.decode())

    def stubs(self) -> dict[str, Stub]:
        """The processes of the Python models, by the model's name."""
        found = {}
        for row in self.run("cat /proc/[0-9]*/stat 2>/dev/null || true").splitlines():
            pid, _, rest = row.partition(" (triton_python_b) ")
            if rest:
                name = self.run(f"tr '\\0' '\\n' < /proc/{pid}/cmdline | grep /model.py").split("/")[-3]
                found[name] = Stub(int(pid), sum(map(int, rest.split()[11:13])))
        assert sorted(found) == ["ensemble", "ensemble_stream"]
        return found

    def signal(self, name: str, pattern: str) -> None:
        """Send a signal to the processes whose name matches."""
        kill = f"case $(cat $p/comm) in {pattern}) kill -{name} ${{p#/proc/}};; esac"
        self.run(f"for p in /proc/[0-9]*; do {kill}; done")

    def logs(self) -> str:
        return str(self.container.logs().decode())

    def wait_ready(self) -> Server:
        end = time.monotonic() + 180
        while time.monotonic() < end:
            self.container.reload()
            assert self.container.status in ("created", "running"), self.logs()
            try:
                if self.ready():
                    return self
            except ConnectionError:
                pass
            time.sleep(0.1)
        raise AssertionError(f"not ready:\n{self.logs()}")

    def wait_exit(self, seconds: float) -> int:
        """Return the exit code."""
        end = time.monotonic() + seconds
        while self.container.status != "exited":
            assert time.monotonic() < end, f"the container has not ended within {seconds} s"
            time.sleep(0.05)
            self.container.reload()
        return int(self.container.attrs["State"]["ExitCode"])


def playing(folder: Path, *arguments: str, hosts: dict[str, Any] | None = None) -> subprocess.Popen[str]:
    """Run converge.yml: write the model folder, and apply the roles to `hosts` if there are any."""
    command = shutil.which("ansible-playbook", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert command
    inventory = folder.parent / f"{folder.name}.inventory.json"
    inventory.parent.mkdir(parents=True, exist_ok=True)
    inventory.write_text(json.dumps({"all": {"children": {"image": {"hosts": hosts or {}}}}}))
    values = json.dumps({"local_model_folder": str(folder)})
    call = [command, "-i", str(inventory), str(HERE / "converge.yml"), "-e", values, *arguments]
    return subprocess.Popen(
        call, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def play(folder: Path, *arguments: str, hosts: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    """Like playing, waited for."""
    run = playing(folder, *arguments, hosts=hosts)
    output, _ = run.communicate()
    return subprocess.CompletedProcess(run.args, run.returncode, output)


def digest(*roles: str) -> str:
    """Content of roles, without their documentation."""
    result = hashlib.sha256()
    for path in sorted(path for role in roles for path in (ROOT / "roles" / role).rglob("*")):
        if path.is_file() and path.suffix not in (".md", ".pyc"):
            result.update(str(path.relative_to(ROOT)).encode() + b"\0" + path.read_bytes())
    return result.hexdigest()[:12]


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    return docker.from_env()


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model folder, as the role writes it with its defaults."""
    top = tmp_path_factory.mktemp("package")
    for folder in (top, *top.parents[:2]):
        folder.chmod(
            folder.stat().st_mode | 0o055
        )  # pytest's folders are for their owner only, the platform's user is another
    result = play(top / "model")
    assert result.returncode == 0, result.stdout
    return top / "model"


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient, model: Path) -> str:
    """Name of the image with Triton and the runtime; made anew when a role of it has changed."""
    key = digest("base_image", "ma_user", "llama_cpp", "triton")
    name = f"{REPOSITORY}:{key}"
    if not engine.images.list(name):
        host = f"local-model-{key}"
        variables = {
            "ansible_connection": "community.docker.docker_api",
            "ansible_user": "root",
            "ansible_remote_tmp": "/tmp/.ansible",
        }
        values = json.dumps({"local_model_base": base_name("triton")})
        try:
            result = play(model, "-e", values, hosts={host: variables})
            assert result.returncode == 0, result.stdout
            config = {"User": "1000:100", "Cmd": ["/opt/modelarts-engine/bin/start"]}
            engine.containers.get(host).commit(REPOSITORY, key, conf=config)
        finally:
            for container in engine.containers.list(all=True, ignore_removed=True, filters={"name": host}):
                container.remove(force=True, v=True)
    return name


Launch = Callable[[Path], Server]


@pytest.fixture(scope="session")
def launch(engine: docker.DockerClient, image: str) -> Launch:
    """launch(folder): a container as the platform would run it, not waited for."""

    def run(folder: Path) -> Server:
        container = engine.containers.run(
            image,
            detach=True,
            init=True,
            user="1000:100",
            read_only=True,
            cap_drop=["ALL"],
            security_opt=["no-new-privileges"],
            tmpfs={"/tmp": "noexec", "/run": "noexec", "/home/ma-user": "noexec,uid=1000,gid=100,mode=0700"},
            shm_size="64m",
            volumes={str(folder): {"bind": "/home/mind/model", "mode": "ro"}},
        )
        return Server(container)

    return run


@pytest.fixture
def start(launch: Launch) -> Iterator[Launch]:
    """Like launch; the containers go with the test."""
    started = []

    def run(folder: Path) -> Server:
        started.append(launch(folder))
        return started[-1]

    yield run
    for server in started:
        server.container.remove(force=True, v=True)


@pytest.fixture(scope="session")
def server(launch: Launch, model: Path) -> Iterator[Server]:
    """A server with the defaults, for tests that leave it as it was."""
    server = launch(model)
    yield server.wait_ready()
    server.container.remove(force=True, v=True)
