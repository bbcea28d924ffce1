"""Makes the checkout's own collection and runner importable, whatever the working directory."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "collections")]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--soak-seconds", default=40, type=int, help="how long the load of the endurance test lasts")
