"""The bootstrapped bases that the suites share: each is made once for each version of the role that makes it."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROLE = ROOT / "roles" / "base_image"
ENGINE_URL = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")


def base_name(flavour: str) -> str:
    """The image of a flavour of `base_image`, named as `molecule/shared/create.yml` does."""
    folders = ("defaults", "files", "files/tfserving", "tasks", "vars")
    files = [path for folder in folders for path in (ROLE / folder).glob("*")]
    texts = [path.read_text().rstrip() for path in sorted(files, key=str) if path.is_file()]
    return f"modelarts-engine/test-base:{hashlib.sha256(''.join(texts).encode()).hexdigest()[:12]}-{flavour}"


def make_base(flavour: str) -> str:
    """Makes the image of a flavour where it is not there, and returns its name."""
    name = base_name(flavour)
    bundle = Path("/etc/ssl/certs/ca-certificates.crt")
    role = {
        "role": "modelarts.engine.base_image",
        "base_image_name": name,
        "base_image_flavour": flavour,
        "base_image_engine_url": ENGINE_URL,
        "base_image_ca_bundle": str(bundle) if bundle.exists() else "",
    }
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    with tempfile.TemporaryDirectory() as folder:
        book = Path(folder, "base.json")
        book.write_text(json.dumps([{"hosts": "localhost", "gather_facts": False, "vars": here, "roles": [role]}]))
        done = subprocess.run(
            [str(Path(sys.executable).with_name("ansible-playbook")), str(book)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return name
