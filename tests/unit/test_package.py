"""Kinds of model packages are found by their files, and refuse what they cannot use before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from modelarts_engine import package
from modelarts_engine.cli import main
from modelarts_engine.engine_client import keys
from modelarts_engine.playbook import ROOT
from modelarts_engine.progress import Progress

OPTIONS = {
    "toy_dest": {"type": "path", "required": True},
    "toy_source": {"type": "path", "required": True, "description": "A folder of toys."},
    "toy_count": {"type": "int", "default": 1},
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A collection with one kind."""
    for name, content in {
        "roles/toy/packages/wooden.yml": {"summary": "Toys", "directory": "toy_source", "values": {"toy_count": 3}},
        "roles/toy/meta/argument_specs.yml": {"argument_specs": {"main": {"options": OPTIONS}}},
        "meta/image_variables.yml": {"image_hosts": {"type": "str"}},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(yaml.safe_dump(content))
    return tmp_path


def test_a_kind_registers_itself_by_its_file(root: Path) -> None:
    assert package.names(root) == ["wooden"]
    what = package.kind("wooden", root)
    assert (what.role, what.directory, what.values) == ("toy", "toy_source", {"toy_count": 3})


@pytest.mark.parametrize("name", ["woden", "../wooden", "*"])
def test_an_unknown_kind_is_refused_with_those_there_are(root: Path, name: str) -> None:
    with pytest.raises(keys.InputError, match="wooden"):
        package.kind(name, root)


def test_a_kinds_file_says_nothing_unknown(root: Path) -> None:
    (root / "roles/toy/packages/wooden.yml").write_text("summary: Toys\nfolder: toy_source\n")
    with pytest.raises(keys.InputError, match=r"roles/toy/packages/wooden\.yml.*folder"):
        package.kind("wooden", root)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({}, "made of a folder.*A folder of toys"),
        ({"toy_source": "/toys", "toy_cont": 1}, "toy_cont.*did you mean toy_count"),
        ({"toy_source": "/toys", "toy_count": "many"}, "toy_count"),
        ({"toy_source": "/toys", "image_host": "x"}, "image_host.*did you mean image_hosts"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_runs(
    root: Path, monkeypatch: pytest.MonkeyPatch, extra: dict[str, object], message: str
) -> None:
    monkeypatch.setattr(package, "run", lambda *_, **__: pytest.fail("a playbook was started"))
    with pytest.raises(keys.InputError, match=message):
        package.write(
            package.kind("wooden", root),
            directory=None,
            dest=None,
            inventory=None,
            extra=extra,
            progress=Progress("wooden"),
            root=root,
        )


def test_every_kind_of_the_collection_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["package"]) == 0
    listed = capsys.readouterr().out
    assert "smollm2" in listed
    collection = keys.Collection(ROOT)
    for name in package.names():
        what = package.kind(name)
        assert {f"{what.role}_dest", *what.values, *([what.directory] if what.directory else [])} <= set(
            collection.options(what.role)
        )
