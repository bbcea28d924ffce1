"""Rules 1-6 of the stage engine: what enters a key, and what must not."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.action import image_plan
from ansible_collections.modelarts.engine.plugins.module_utils import keys

SPEC = """
argument_specs:
  main:
    options:
      web_port: {type: int, default: 8080}
      web_names: {type: list, elements: str, default: []}
      web_cache_dir: {type: str, default: /somewhere}
      web_mode: {type: str, choices: [fast, safe], default: safe}
"""


def write(root: Path, name: str, text: str, mode: int = 0o644) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "a"
    write(root, "roles/web/meta/argument_specs.yml", SPEC)
    write(
        root,
        "roles/web/tasks/main.yml",
        "- modelarts.engine.shape: {}\n- ansible.builtin.include_role: {name: modelarts.engine.base}\n",
    )
    write(root, "roles/web/templates/web.j2", "{{ x | modelarts.engine.bend }}")
    write(root, "roles/web/README.md", "about")
    write(
        root,
        "roles/base/meta/argument_specs.yml",
        "argument_specs: {main: {options: {base_size: {type: int, default: 1}}}}",
    )
    write(root, "roles/base/tasks/main.yml", "- ansible.builtin.debug: {msg: x}\n")
    write(
        root,
        "plugins/modules/shape.py",
        "from ansible_collections.modelarts.engine.plugins.module_utils.deep import x\n",
    )
    write(root, "plugins/module_utils/deep.py", "x = 1\n")
    write(root, "plugins/module_utils/alone.py", "y = 1\n")
    write(root, "plugins/filter/bend.py", "def bend(): ...\n")
    return root


def key(
    root: Path,
    *,
    parent: str = "p",
    values: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    epoch: str = "",
    core: str = "2.19",
) -> str:
    collection = keys.Collection(root)
    args = {"web": keys.arguments(collection.options("web"), values or {}, "web")}
    return keys.stage_key(
        parent=parent,
        roles=["web"],
        args=args,
        collection=collection,
        versions=lambda others: {"ansible-core": core},
        config=config or {},
        epoch=epoch,
    )


def test_same_revision_elsewhere_has_the_same_key(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "deeper" / "b"
    shutil.copytree(tree, other)
    for number, path in enumerate(sorted(other.rglob("*"), reverse=True)):
        os.utime(path, (number, number))
        path.chmod(0o775 if path.is_dir() else 0o664)
    assert key(other) == key(tree)


@pytest.mark.parametrize(
    "name",
    [
        "roles/web/tasks/main.yml",
        "roles/web/templates/web.j2",
        "roles/base/tasks/main.yml",
        "plugins/modules/shape.py",
        "plugins/module_utils/deep.py",
        "plugins/filter/bend.py",
    ],
)
def test_every_reached_file_counts(tree: Path, name: str) -> None:
    before = key(tree)
    path = tree / name
    path.write_text(path.read_text() + "# more\n")
    assert key(tree) != before


@pytest.mark.parametrize(
    "name", ["roles/web/README.md", "plugins/module_utils/alone.py", "roles/web/tasks/__pycache__/x.pyc"]
)
def test_files_that_are_not_reached_do_not_count(tree: Path, name: str) -> None:
    before = key(tree)
    write(tree, name, "changed")
    assert key(tree) == before


def test_a_renamed_or_executable_file_counts(tree: Path) -> None:
    before = key(tree)
    (tree / "roles/web/templates/web.j2").chmod(0o755)
    executable = key(tree)
    (tree / "roles/web/templates/web.j2").rename(tree / "roles/web/templates/other.j2")
    assert len({before, executable, key(tree)}) == 3


def test_everything_else_that_goes_in_counts(tree: Path) -> None:
    made = [
        key(tree),
        key(tree, parent="q"),
        key(tree, values={"web_port": 8081}),
        key(tree, values={"web_names": ["a", "b"]}),
        key(tree, values={"web_names": ["b", "a"]}),
        key(tree, config={"User": "1000:100"}),
        key(tree, epoch="2026-12"),
        key(tree, core="2.20"),
    ]
    assert len(set(made)) == len(made)


def test_values_count_after_coercion_and_defaults(tree: Path) -> None:
    assert (
        key(tree) == key(tree, values={"web_port": "8080"}) == key(tree, values={"web_port": 8080, "web_mode": "safe"})
    )


def test_undeclared_variables_and_places_do_not_count(tree: Path) -> None:
    assert key(tree) == key(tree, values={"unrelated": 1, "web_cache_dir": "/elsewhere"})


def test_canonical_json_does_not_depend_on_order() -> None:
    orders = [dict(order) for order in itertools.permutations({"a": 1, "b": [1, {"y": 1, "x": 2}], "c": None}.items())]
    assert len({keys.canonical(order) for order in orders}) == 1


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"web_port": "eighty"}, "web_port"),
        ({"web_mode": "quick"}, "fast, safe"),
        ({"web_names": {"a": 1}}, "web_names"),
    ],
)
def test_wrong_values_are_refused_by_name(tree: Path, values: dict[str, Any], said: str) -> None:
    with pytest.raises(keys.InputError, match=said):
        key(tree, values=values)


def test_a_secret_argument_is_refused(tree: Path) -> None:
    write(
        tree,
        "roles/web/meta/argument_specs.yml",
        "argument_specs: {main: {options: {web_password: {type: str, no_log: true}}}}",
    )
    with pytest.raises(keys.InputError, match=r"web_password.*never an argument of a stage"):
        key(tree)


def test_a_role_that_cannot_be_followed_is_refused(tree: Path) -> None:
    write(
        tree,
        "roles/web/tasks/main.yml",
        "- name: x\n  block:\n    - ansible.builtin.include_role:\n        name: '{{ which }}'\n",
    )
    with pytest.raises(keys.InputError, match=r"roles/web/tasks/main.yml: include_role takes its name from a template"):
        key(tree)
    write(tree, "roles/web/tasks/main.yml", "- ansible.builtin.import_tasks: ../../base/tasks/main.yml\n")
    with pytest.raises(keys.InputError, match="outside the role"):
        key(tree)


def test_unknown_variables_are_named_with_the_nearest(tree: Path) -> None:
    collection = keys.Collection(tree)
    assert collection.unknown(["web_prot", "other"]) == [
        "web_prot: role web has no such argument; did you mean web_port?"
    ]
    assert collection.unknown(["wbe_port", "ansible_user", "image_x"], also_known=["image_x"]) == [
        "wbe_port: nothing reads this variable; did you mean web_port?"
    ]


def test_unknown_roles_are_named_with_the_nearest(tree: Path) -> None:
    with pytest.raises(keys.InputError, match="role wep does not exist; did you mean web"):
        keys.Collection(tree).options("wep")
    with pytest.raises(keys.InputError, match=r"roles of modelarts\.engine only"):
        keys.role_name("community.general.web")


def test_later_roles_may_name_earlier_arguments(tree: Path) -> None:
    seen = []

    def given(role: str, so_far: Any) -> dict[str, Any]:
        seen.append((role, dict(so_far)))
        return {"base_size": 7} if role == "base" else {}

    resolved = keys.resolve(["base", "web"], keys.Collection(tree), given)
    assert resolved["base"] == {"base_size": 7}
    assert seen[1] == ("web", {"base_size": 7})


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, ("", [])),
        ({"image": "", "paths": []}, ("", [])),
        ({"image": "nvcr.io/n/torch:25.01-py3@sha256:ab", "paths": ["/usr/local/lib/lib*"]}, ("nvcr.io/n/torch@sha256:ab", ["/usr/local/lib/lib*"])),
        ({"image": "localhost:5000/a@sha256:ab", "paths": ["/x+1"]}, ("localhost:5000/a@sha256:ab", ["/x+1"])),
    ],
)  # fmt: skip
def test_what_is_taken_from_an_image(asked: dict[str, Any], found: tuple[str, list[str]]) -> None:
    assert image_plan.ActionModule._taken_from({"name": "torch", "takes_from": asked}) == found


@pytest.mark.parametrize("change", [{"paths": []}, {"paths": ["usr"]}, {"paths": ["/a b"]}, {"paths": ["/$(id)"]}])
def test_a_path_that_is_none_is_refused(change: dict[str, Any]) -> None:
    asked = {"image": "a/b@sha256:ab", "paths": ["/usr"], **change}
    with pytest.raises(keys.InputError, match="stage torch takes_from a/b@sha256:ab must have paths"):
        image_plan.ActionModule._taken_from({"name": "torch", "takes_from": asked})
    with pytest.raises(keys.InputError, match="no takes beside it"):
        image_plan.ActionModule._taken_from({"name": "torch", "takes": "x", "takes_from": {**asked, "paths": ["/usr"]}})
