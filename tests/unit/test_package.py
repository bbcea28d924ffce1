"""Kinds of model packages are found by their files, and refuse what they cannot use before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from modelarts_engine import package
from modelarts_engine.cli import main
from modelarts_engine.engine_client import keys
from modelarts_engine.playbook import ROOT, Outcome
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


def ran(monkeypatch: pytest.MonkeyPatch, root: Path, extra: dict[str, object]) -> dict[str, object]:
    """The variables that a run of the kind is given."""
    seen: dict[str, object] = {}

    def run(playbook: str, **given: object) -> Outcome:
        seen.update(given["extra"], playbook=playbook)  # type: ignore[call-overload]
        return Outcome(0)

    monkeypatch.setattr(package, "run", run)
    outcome, path = package.write(
        package.kind("wooden", root),
        directory="toys",
        dest=str(root / "out/model"),
        inventory=None,
        extra=extra,
        progress=Progress("wooden"),
        root=root,
    )
    assert (outcome.code, path) == (0, root / "out/model")
    return seen


def test_a_role_is_given_folders_the_kinds_values_and_the_users(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = ran(monkeypatch, root, {})
    assert seen == {
        "playbook": "package.yml",
        "package_role": "toy",
        "toy_dest": str(root / "out/model"),
        "toy_source": str(Path("toys").absolute()),
        "toy_count": 3,
    }
    assert ran(monkeypatch, root, {"toy_count": 5})["toy_count"] == 5


def test_an_argument_may_follow_a_variable_of_the_build(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (root / "roles/toy/packages/wooden.yml").open("a") as file:
        file.write("follows: {toy_count: image_toys}\n")
    (root / "meta/image_variables.yml").write_text("image_toys: {type: int}\n")
    assert ran(monkeypatch, root, {"image_toys": 7})["toy_count"] == 7
    assert ran(monkeypatch, root, {"image_toys": 7, "toy_count": 5})["toy_count"] == 5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (["smollm2", "--image", "triton"], "cannot be tried in an image this way"),
        (["smollm2", "--prebuild"], "has nothing to prebuild"),
        (["llama_7b", "/x", "--prebuild"], "give it with --image"),
        (["llama_7b", "/x", "--image", "triton", "-i", "inventories/gpu"], "an image of this machine's engine"),
        (["smollm3"], "did you mean smollm2?"),
        (["llama_7b"], "made of a folder"),
        (["llama_7b", "/x"], "the package llama_7b needs -e trtllm_release="),
    ],
)
def test_what_a_kind_cannot_do_is_refused_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: list[str], message: str
) -> None:
    monkeypatch.setattr(package, "run", lambda *_, **__: pytest.fail("a playbook was started"))
    assert main(["package", *line]) == 2
    assert message in capsys.readouterr().err
