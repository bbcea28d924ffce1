"""`pytest verify --image IMAGE` checks an image against the platform's contract, clause by clause."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import docker
import pytest
import requests.exceptions
import testinfra

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

pytest.register_assert_rewrite("verify.contract")

from verify.contract import Contract, Request  # noqa: E402

MODELS = Path.home() / ".cache/modelarts-engine/models"
OUTCOMES: dict[str, dict[str, str]] = {}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("contract", "the platform's contract")
    group.addoption("--image", help="the image to check, as the engine knows it")
    group.addoption(
        "--model",
        type=Path,
        help="model folder on this machine; default the model that the local build of the image's engine makes",
    )
    group.addoption(
        "--request",
        type=Path,
        help="JSON file: method, path, body, expect; default what the role of the image's engine says",
    )
    group.addoption("--engine-url", help="the container engine; default DOCKER_HOST or the local socket")
    group.addoption("--wait", type=float, default=120, help="seconds the image may take to be healthy; default 120")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--help"):
        return
    if not config.getoption("--image"):
        raise pytest.UsageError("say which image: pytest verify --image IMAGE")
    for option in ("--model", "--request"):
        given = config.getoption(option)
        if given and not given.exists():
            raise pytest.UsageError(f"{option}: there is no {given}")


def _rehearsal() -> ModuleType:
    """The collection's own module, wherever the collection is."""
    path = ROOT / "plugins/module_utils/rehearsal.py"
    spec = importlib.util.spec_from_file_location("modelarts_engine_rehearsal", path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def contract(pytestconfig: pytest.Config) -> Iterator[Contract]:
    """The image under test."""
    url = pytestconfig.getoption("--engine-url") or os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock"
    os.environ["DOCKER_HOST"] = url  # testinfra's too
    image = pytestconfig.getoption("--image")
    rehearsal = _rehearsal()
    try:
        client = docker.DockerClient(base_url=url, timeout=600)
        attributes = client.api.inspect_image(image)
        named, model = pytestconfig.getoption("--request"), pytestconfig.getoption("--model")
        asked: Any = None if named and model else rehearsal.of_image(attributes)
        request = Request.load(named) if named else Request.of(asked)
        model = (model or MODELS / asked.engine / "model").resolve()
        if not model.is_dir() or not any(model.iterdir()):
            pytest.exit(f"{model} is no folder with a model in it; name one with --model DIR", returncode=4)
        contract = Contract(client, image, model, request, pytestconfig.getoption("--wait"))
    except docker.errors.ImageNotFound:
        pytest.exit(f"the engine at {url} has no image {image}", returncode=2)
    except (docker.errors.DockerException, requests.exceptions.RequestException) as error:
        pytest.exit(f"no container engine answers at {url}: {error}", returncode=2)
    except ValueError as error:
        pytest.exit(str(error), returncode=2)
    yield contract
    contract.close()


@pytest.fixture(scope="session")
def inside(contract: Contract) -> Any:
    """testinfra's view of a container that runs as the platform runs it."""
    return testinfra.get_host(f"docker://{contract.get('platform').container.id}")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    outcome: Any = yield
    report = outcome.get_result()
    group = OUTCOMES.setdefault(str(getattr(item, "module").__doc__).splitlines()[0], {})  # noqa: B009
    if report.failed:
        crash = getattr(report.longrepr, "reprcrash", None)
        group[item.name] = (crash.message if crash else str(report.longrepr)).splitlines()[0]


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """One line per clause, and why it is broken."""
    if OUTCOMES:
        terminalreporter.section("the platform's contract")
    for title, failures in OUTCOMES.items():
        terminalreporter.line(f"{'broken' if failures else 'kept  '}  {title}", red=bool(failures), green=not failures)
        for name, message in failures.items():
            terminalreporter.line(f"          {name}: {re.sub(r'^(AssertionError|Failed): ', '', message)}")
