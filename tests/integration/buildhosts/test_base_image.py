"""The role base_image: what a bootstrapped image holds, and what a build that fails or is killed leaves."""

import json
import os
import signal
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest

from tests.bases import make_base

from .conftest import ROOT, URL, Run

SCRIPT = ROOT / "roles/base_image/files/bootstrap.sh"
MODEL = """
import numpy as np
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        texts = [pb.get_input_tensor_by_name(request, "IN").as_numpy()[0] for request in requests]
        return [pb.InferenceResponse([pb.Tensor("OUT", np.array([text + b"!"], dtype=object))]) for text in texts]
"""
CONFIG = """
backend: "python"
input [{name: "IN" data_type: TYPE_STRING dims: [1]}]
output [{name: "OUT" data_type: TYPE_STRING dims: [1]}]
instance_group [{kind: KIND_CPU}]
"""


@pytest.fixture(scope="module")
def triton() -> str:
    return make_base("triton")


@pytest.fixture(scope="module")
def inside(engine: docker.DockerClient, triton: str) -> Iterator[Callable[[str], str]]:
    """inside(script): output of a shell script in a container of the Triton base, as root."""
    container = engine.containers.run(triton, ["sleep", "infinity"], detach=True, init=True, network_mode="none")

    def run(script: str) -> str:
        code, output = container.exec_run(["sh", "-c", script])
        assert code == 0, output.decode()
        return str(output.decode())

    yield run
    container.remove(force=True, v=True)


@pytest.mark.parametrize("tool", ["pip", "pip3", "gcc", "cc", "g++", "make", "perldoc", "man", "curl"])
def test_has_no_tool_that_serving_does_not_need(inside: Callable[[str], str], tool: str) -> None:
    assert inside(f"command -v {tool} || true") == ""


def test_has_no_lists_caches_logs_or_documents(inside: Callable[[str], str]) -> None:
    places = "/var/lib/apt/lists /var/cache/apt /var/log /tmp /var/tmp /root/.cache /usr/share/man /usr/share/doc"
    found = inside(f"find {places} -type f -size +0 ! -name copyright 2>/dev/null || true")
    assert found == ""


def test_keeps_nothing_of_the_build_host(
    engine: docker.DockerClient, triton: str, inside: Callable[[str], str]
) -> None:
    assert inside("grep -rliE 'proxy|CAInfo|modelarts-base' /etc/apt /etc/dpkg || true") == ""
    assert set(engine.images.get(triton).attrs["Config"]["Env"]) == {
        "PATH=/opt/tritonserver/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    }


def test_has_what_the_real_image_has(engine: docker.DockerClient, triton: str, inside: Callable[[str], str]) -> None:
    config = engine.images.get(triton).attrs["Config"]
    assert config["Entrypoint"] == ["/opt/nvidia/nvidia_entrypoint.sh"]
    assert config["WorkingDir"] == "/opt/tritonserver"
    assert inside("getent passwd 1000").strip() == "triton-server:x:1000:1000::/home/triton-server:/bin/bash"
    assert inside("stat -c '%U:%G' /home/triton-server").split() == ["triton-server:triton-server"]
    assert inside("find /opt/tritonserver ! -uid 1000 -o ! -gid 1000") == ""
    for path in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        inside(f"test -x /opt/tritonserver/{path}")
    for path in (
        "lib/libtritonserver.so",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_utils.py",
    ):
        inside(f"test -r /opt/tritonserver/{path}")


def test_every_library_resolves_without_an_environment(inside: Callable[[str], str]) -> None:
    # numpy's private libraries are found by the modules that load them.
    wanted = "-type f \\( -name '*.so*' -o -perm -u+x \\) -print"
    find = f"find /opt/tritonserver /usr/local/lib -name numpy.libs -prune -o {wanted}"
    assert len(inside(find).split()) > 50
    assert (
        inside(f"for file in $({find}); do env -i /usr/bin/ldd $file | grep 'not found' && echo $file; done; true")
        == ""
    )
    # An extension module's symbols come from the Python that loads it; a program's have to be there.
    programs = "/opt/tritonserver/bin/tritonserver /opt/tritonserver/backends/python/triton_python_backend_stub"
    assert inside(f"for file in {programs}; do env -i /usr/bin/ldd -r $file 2>&1 | grep undefined; done; true") == ""


def test_numpy_is_one_that_the_backend_can_read(inside: Callable[[str], str]) -> None:
    assert inside("python3 -c 'import numpy; print(numpy.__version__)'").startswith("1.")


def test_python_model_is_served_as_1000_under_the_platforms_restrictions(
    engine: docker.DockerClient, triton: str, tmp_path: Path
) -> None:
    version = tmp_path / "shout" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(MODEL)
    (tmp_path / "shout/config.pbtxt").write_text(CONFIG)
    tmp_path.chmod(0o755)
    container = engine.containers.run(
        triton,
        ["tritonserver", "--model-repository=/models"],
        detach=True,
        user="1000:1000",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=["no-new-privileges"],
        tmpfs={"/tmp": "", "/run": ""},
        volumes={str(tmp_path): {"bind": "/models", "mode": "ro"}},
        ports={"8000/tcp": ("127.0.0.1", 0)},
    )
    try:
        tensor = {"name": "IN", "datatype": "BYTES", "shape": [1], "data": ["grüß"]}
        answer = eventually(container, {"inputs": [tensor]})
        assert answer["outputs"][0]["data"] == ["grüß!"]
    finally:
        container.remove(force=True, v=True)


def eventually(container: Any, request: dict[str, Any], seconds: float = 30) -> Any:
    """The model's answer, as soon as it gives one."""
    end = time.monotonic() + seconds
    while True:
        container.reload()
        assert container.status in ("created", "running"), container.logs().decode()
        try:
            port = container.ports["8000/tcp"][0]["HostPort"]
            url = f"http://127.0.0.1:{port}/v2/models/shout/infer"
            with urllib.request.urlopen(url, json.dumps(request).encode(), timeout=5) as response:
                return json.load(response)
        except (OSError, KeyError, IndexError):
            assert time.monotonic() < end, container.logs().decode()
            time.sleep(0.1)


def test_later_stages_can_install_from_its_sources(engine: docker.DockerClient) -> None:
    script = (
        "apt-get -qq update && apt-get -qq install -y --no-install-recommends libgomp1 && ls /usr/share/doc/libgomp1"
    )
    output = engine.containers.run(make_base("debian"), ["sh", "-c", script], remove=True)
    assert output.decode().split()[-1] == "copyright"


def test_an_image_that_is_there_is_taken_as_it_is(
    apply: Callable[..., Run], engine: docker.DockerClient, triton: str
) -> None:
    before = engine.images.get(triton).id
    run = apply("base_image", {"base_image_name": triton, "base_image_engine_url": URL})
    assert (run.code, run.changed, engine.images.get(triton).id) == (0, 0, before)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"base_image_suite": "trixie"}, "base_image_suite is 'trixie'"),
        ({"base_image_suite": "nosuchsuite", "base_image_flavour": "debian"}, "do not offer the suite 'nosuchsuite'"),
        ({"base_image_mirrors": ["http://mirror.example/debian"]}, "base_image_mirrors is"),
        ({"base_image_mirrors": ["deb http://u:secret@mirror.example/debian bookworm main"]}, "without a password"),
        ({"base_image_packages": ["Bad Name"]}, "base_image_packages is"),
        (
            {"base_image_mirrors": ["deb http://127.0.0.1:9/debian bookworm main"], "base_image_flavour": "debian"},
            "refused",
        ),
        ({"base_image_source": "pull", "base_image_reference": "a/b:1"}, "pulled by digest"),
        (
            {"base_image_source": "pull", "base_image_reference": "a/b", "base_image_digest": "sha256:12"},
            "64 hexadecimal",
        ),
        ({"base_image_flavour": "ubuntu"}, "must be one of"),
        ({"base_image_name": "Not A Name"}, "base_image_name is"),
    ],
)
def test_bad_input_is_refused_once_and_leaves_nothing(
    apply: Callable[..., Run], engine: docker.DockerClient, arguments: dict[str, Any], word: str
) -> None:
    name = f"modelarts-engine/test-bad:{uuid.uuid4().hex}"
    run = apply("base_image", {"base_image_name": name, "base_image_engine_url": URL, **arguments})
    assert run.code == 2
    assert word in run.text
    assert engine.images.list(name) == []


def test_killed_bootstrap_tags_nothing_and_the_next_one_cleans_up(engine: docker.DockerClient, tmp_path: Path) -> None:
    name = f"modelarts-engine/test-killed:{uuid.uuid4().hex}"
    told = {"ENGINE": URL, "IMAGE": name, "SUITE": "bookworm", "SOURCES": "", "FLAVOUR": "debian", "PYTHON": ""}
    told |= {"PACKAGES": "", "IMAGE_PATH": "/usr/bin:/bin", "FILES": "", "WHEELS": "", "SOURCE": "", "CA": ""}
    before = set(Path("/var/tmp").glob("modelarts-base.*"))
    killed = subprocess.Popen([SCRIPT], env={**os.environ, **told}, start_new_session=True, stderr=subprocess.DEVNULL)
    end = time.monotonic() + 60
    while not (left := set(Path("/var/tmp").glob("modelarts-base.*/log")) - {folder / "log" for folder in before}):
        assert killed.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    (folder,) = (log.parent for log in left)
    assert engine.images.list(name) == []
    assert str(folder) not in Path("/proc/mounts").read_text()

    os.utime(folder, (0, 0))
    subprocess.run([SCRIPT], env={**os.environ, **told, "SUITE": "nosuchsuite"}, check=False, stderr=subprocess.DEVNULL)
    assert not folder.exists()
