"""The contract suite is green on the image we build and red, with the reason, on an image broken for each clause."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import docker
import pytest

ROOT = Path(__file__).resolve().parents[2]
BROKEN = "modelarts-engine/test-broken"
ETC = "/opt/modelarts-engine/etc"
START = "/opt/modelarts-engine/bin/start"
SUPERVISE = "/opt/modelarts-engine/bin/supervise"
HOME = "/home/ma-user/.serving"
TLS = "/etc/modelarts-engine/tls"
NGINX = "/etc/nginx/nginx.conf"


@dataclass
class Variant:
    """How an image breaks a clause, which tests must see it and what they must say.

    :ivar script: run as root in the image; it has to change something.
    :ivar config: of the image, in the engine's words, over what it has.
    """

    tests: str
    says: str
    script: str = "true"
    config: dict[str, Any] = field(default_factory=dict)


def edit(path: str, old: str, new: str) -> str:
    """Shell that replaces text and fails where there is none."""
    return f"grep -q '{old}' {path} && sed -i 's#{old}#{new}#' {path}"


def insert(path: str, line: str) -> str:
    """Shell that makes a line the second of a script."""
    return f"sed -i '2i {line}' {path}"


FIXED_KEY = f"""
mkdir -p {TLS} && cd {TLS} && openssl req -x509 -newkey rsa:2048 -nodes -days 30 -subj /CN=localhost \\
  -addext subjectAltName=DNS:localhost,IP:127.0.0.1 -keyout tls.key -out tls.crt 2>/dev/null && chmod 0644 tls.key
"""
LEFTOVERS = f"""
mkdir -p /var/lib/apt/lists /root/.ansible/tmp
echo x >/var/lib/apt/lists/deb.debian.org_Packages && echo x >/root/.ansible/tmp/x
openssl genpkey -algorithm RSA -out {ETC}/left 2>/dev/null
"""

VARIANTS = {
    "C1 another name": Variant("c01", "someone", edit("/etc/passwd", "^ma-user:", "someone:")),
    "C1 a home that is not writable": Variant(
        "c01", "/home/ma-user", "chown 0:0 /home/ma-user; chmod 0755 /home/ma-user"
    ),
    "C2 another group": Variant("c02", "4321", "groupadd -g 4321 other && usermod -g other ma-user"),
    "C3 another command": Variant("c03", "'bash'", config={"Cmd": ["bash", "/home/mind/run.sh"]}),
    "C3 an entrypoint": Variant("c03", "tini", config={"Entrypoint": ["tini", "--"]}),
    "C3 not under bash": Variant("c03", "bash: ", insert("/home/mind/run.sh", '[ -z "$BASH_VERSION" ] || exit 3')),
    "C4 another folder": Variant("c04", "/elsewhere", edit(f"{ETC}/serving.env", "/home/mind/model", "/elsewhere")),
    "C4 a model in the image": Variant("c04 and brings", "model/baked", "mkdir /home/mind/model/baked"),
    "C5 in the clear": Variant("c05", "/health on port 8080 over TLS", edit(NGINX, "listen 8080 ssl", "listen 8080")),
    "C5 no TLS 1.3": Variant("c05", "TLSv1_3", edit(NGINX, "ssl_protocols .*;", "ssl_protocols TLSv1.2;")),
    "C5 a key for everybody": Variant("c05", "of_this_start", FIXED_KEY),
    "C6 always true": Variant("c06", "c06_once_true", edit(NGINX, "auth_request /.ready;", "")),
    "C6 another body": Variant("c06", "path_and_body", f"echo '{{}}' >{ETC}/health.json"),
    "C7 65 s": Variant("c07", "after 65 s", edit(NGINX, "keepalive_timeout 200s;", "keepalive_timeout 65s;")),
    "C8 no drain": Variant("c08", "after SIGTERM", edit(SUPERVISE, "^trap .on_signal TERM. TERM", "trap exit TERM")),
    "C8 in flight is lost": Variant("c08", "in flight", edit(SUPERVISE, "^send QUIT", "send TERM")),
    "C8 143 after a drain": Variant("c08", "exit code 143", edit(SUPERVISE, "^exit 0", "exit 143")),
    "C9 a file": Variant(
        "c09", "standard output", edit(NGINX, "access_log /dev/stdout", f"access_log {HOME}/access.log")
    ),
    "C11 a small body": Variant("c11", "12 MB are too large", edit(NGINX, "max_body_size .*;", "max_body_size 1m;")),
    "C11 30 s": Variant("c11", "after 30 s", edit(NGINX, "proxy_read_timeout 7.*;", "proxy_read_timeout 30s;")),
    "C12 ma-user's mount only": Variant("c12", "mount of root", insert(START, "[ -O /home/mind/model ] || exit 4")),
    "C12 root's mount only": Variant("c12", "mount of ma-user", insert(START, "[ ! -O /home/mind/model ] || exit 4")),
    "beyond: the dead go unnoticed": Variant(
        "dies", "the container ends", edit(SUPERVISE, "^  check_children$", "  :")
    ),
    "beyond: a key and leftovers": Variant("leftovers", "a private key", LEFTOVERS),
    "beyond: setuid": Variant("setuid", "bin/start", f"chmod u+s {START}"),
}


def verify(image: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "verify", f"--image={image}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def engine() -> docker.DockerClient:
    return docker.from_env()


@pytest.fixture(scope="module")
def image() -> str:
    """The image under test: that of the environment, or the Triton image, built where it is missing."""
    if named := os.environ.get("MODELARTS_ENGINE_TEST_IMAGE"):
        return named
    done = subprocess.run(
        [sys.executable, "runner.py", "build", "triton"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return "modelarts-engine/triton:latest"


@pytest.fixture
def broken(engine: docker.DockerClient, image: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An image broken as the variant says."""
    variant: Variant = request.param
    config = engine.api.inspect_image(image)["Config"]
    container = engine.containers.run(
        image, entrypoint=["sh", "-c", variant.script], command=[], user="0:0", detach=True
    )
    try:
        assert container.wait()["StatusCode"] == 0, container.logs().decode()
        made = container.commit(
            BROKEN, request.node.callspec.id.encode().hex()[:40], conf={**config, "Entrypoint": [], **variant.config}
        )
    finally:
        container.remove(v=True)
    yield made.id
    engine.images.remove(made.id, force=True)


def test_green_on_the_image_we_build(image: str) -> None:
    done = verify(image)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "broken" not in done.stdout
    for clause in range(1, 13):
        assert f"kept    C{clause} " in done.stdout


@pytest.mark.parametrize(
    ("broken", "variant"), [(v, v) for v in VARIANTS.values()], ids=list(VARIANTS), indirect=["broken"]
)
def test_red_on(broken: str, variant: Variant) -> None:
    done = verify(broken, "-x", "-k", variant.tests, "--wait=40")
    assert done.returncode == 1, done.stdout[-6000:] + done.stderr
    summary = done.stdout.partition("the platform's contract")[2].partition("short test summary")[0]
    assert "broken" in summary, done.stdout[-6000:]
    assert variant.says in summary, summary


def test_red_on_c10_a_model_too_large(image: str, tmp_path: Path) -> None:
    with (tmp_path / "weights").open("wb") as weights:
        weights.truncate(31_000_000_000)
    done = verify(image, "-k", "c10", f"--model={tmp_path}")
    assert done.returncode == 1, done.stdout
    assert "model 31.0 GB, 30 together fit a public pool" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([], 4, "say which image"),
        (["--image=no/such:image"], 2, "has no image no/such:image"),
        (["--image=x", "--model=/no/such/folder"], 4, "/no/such/folder"),
        (
            ["--image=x", "--engine-url=unix:///no/such/socket"],
            2,
            "no container engine answers at unix:///no/such/socket",
        ),
    ],
    ids=["no image", "unknown image", "no model", "no engine"],
)
def test_bad_input_is_named(arguments: list[str], code: int, says: str) -> None:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "verify", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
