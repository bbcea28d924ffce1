"""The Triton image with a backend's tools and templates in small, and packages that it serves as the platform would run it."""

from __future__ import annotations

import hashlib
import io
import json
import re
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
import small_llama
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import engine as engine_module
from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama, serving, trtllm, trtllm_package

ROOT = Path(__file__).resolve().parents[3]
ROLE = ROOT / "roles/trtllm_model"
FIXTURE = ROOT / "tests/fixtures/trtllm_image"
OPTIONS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
DEFAULTS = {name.removeprefix("trtllm_model_"): option.get("default") for name, option in OPTIONS.items()}
NAME = "modelarts-engine/test-trtllm-model"
# Where the pieces of the image in small go.
PLACES = {
    "all_models": "opt/modelarts-engine/trtllm",
    "examples": "opt/modelarts-engine/trtllm",
    "tools": "usr/local/bin",
}

Package = Callable[..., Path]
Launch = Callable[..., serving.Service]


@pytest.fixture(scope="session")
def engine() -> docker.DockerClient:
    return docker.from_env()


def _layers() -> bytes:
    """What makes a Triton image one with the backend, as an archive of root's files."""
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w") as tar:

        def root(entry: tarfile.TarInfo) -> tarfile.TarInfo:
            entry.uid = entry.gid = entry.mtime = 0
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
            return entry

        for name, place in PLACES.items():
            target = place if name == "tools" else f"{place}/{name}"
            tar.add(FIXTURE / name, target, filter=root)
        tar.add(FIXTURE / "versions.json", "opt/modelarts-engine/trtllm/versions.json", filter=root)
    return blob.getvalue()


@pytest.fixture(scope="session")
def image(engine: docker.DockerClient) -> str:
    """Name of the image: that of the recipe, with the tools and templates of `tests/fixtures/trtllm_image`."""
    built = subprocess.run(
        [sys.executable, "runner.py", "build", "triton"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stdout + built.stderr
    found = re.search(r"modelarts-engine/triton:[0-9a-f]{12}", built.stdout)
    assert found, built.stdout
    blob = _layers()
    tag = hashlib.sha256(found[0].encode() + blob).hexdigest()[:12]
    if not engine.images.list(f"{NAME}:{tag}"):
        container = engine.containers.create(found[0])
        try:
            container.put_archive("/", blob)
            container.commit(NAME, tag)
        finally:
            container.remove(force=True)
    return f"{NAME}:{tag}"


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole Hugging Face folder."""
    return small_llama.make(tmp_path_factory.mktemp("hf") / "small")


@pytest.fixture
def package(source: Path, tmp_path: Path) -> Package:
    """package(**arguments): a model folder that asks for the Python model in the backend's place."""

    def make(**given: Any) -> Path:
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(folder.stat().st_mode | 0o055)  # pytest's folders are for their owner only
        values = {"triton_backend": "python", **given.pop("values", {})}
        scripts = {
            str(path.relative_to(ROLE / "files")): path.read_text()
            for path in (ROLE / "files").rglob("*")
            if path.suffix in (".py", ".sh")
        }
        made = trtllm_package.Package(
            tmp_path / "model",
            source,
            hf_llama.check(source),
            trtllm.choose("v0.12.0"),
            {**DEFAULTS, **given, "values": values},
            scripts,
        )
        made.write()
        return tmp_path / "model"

    return make


@pytest.fixture
def launch(engine: docker.DockerClient, image: str) -> Iterator[Launch]:
    """launch(folder, **more): the image with a package, as the platform runs it. The containers go with the test."""
    started: list[Any] = []

    def run(folder: Path, **more: Any) -> serving.Service:
        started.append(serving.run_as_platform(engine, image, folder, **more))
        return serving.Service(started[-1])

    yield run
    for container in started:
        engine_module.remove(engine, container.id)


def tutorial(**types: str) -> dict[str, Any]:
    """The tutorial's request, to the letter unless types are given."""
    words = {"text_input": "what is machine learning", "bad_words": "", "stop_words": ""}
    numbers = {"max_tokens": 64, "pad_id": 2, "end_id": 2}
    kinds = {**dict.fromkeys(words, "BYTES"), **dict.fromkeys(numbers, "UINT32"), **types}
    return {
        "inputs": [
            {"name": name, "datatype": kinds[name], "shape": [1, 1], "data": [value]}
            for name, value in {**words, **numbers}.items()
        ],
        "outputs": [{"name": "text_output"}],
    }


def answer(service: serving.Service, path: str, body: Any) -> tuple[int, Any]:
    """Status and JSON of a response."""
    response = service.request("POST", path, body)
    return response.status, json.loads(response.read())
