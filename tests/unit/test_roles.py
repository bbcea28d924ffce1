"""Conventions every role keeps: the specification is the interface, defaults and README repeat it."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible.playbook.task import Task

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir())
NAMES = [role.name for role in ROLES]

KEYWORDS = {*Task.fattributes, "args", "local_action"}
BLOCKS = {"block", "rescue", "always"}
EDITS = {"ansible.builtin.lineinfile", "ansible.builtin.blockinfile", "ansible.builtin.replace"}
FACTS = {"ansible.builtin.setup", "ansible.builtin.gather_facts"}


# Reads !unsafe and !vault as plain text.
Loader: Any = type("Loader", (yaml.SafeLoader,), {})
Loader.add_multi_constructor("!", lambda loader, _suffix, node: loader.construct_scalar(node))


def load(path: Path) -> Any:
    return yaml.load(path.read_text(), Loader=Loader)


def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("role_docs", ROOT / "tools" / "role_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["role_docs"] = module
    spec.loader.exec_module(module)
    return module


role_docs = tool()


def tasks(role: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every task and handler of a role, those in blocks too."""

    def walk(path: Path, entries: list[dict[str, Any]]) -> Iterator[tuple[Path, dict[str, Any]]]:
        for entry in entries:
            inner = [entry[key] for key in BLOCKS & entry.keys()]
            if inner:
                for block in inner:
                    yield from walk(path, block)
            else:
                yield path, entry

    for folder in ("tasks", "handlers"):
        for path in sorted((role / folder).glob("**/*.yml")):
            yield from walk(path, load(path) or [])


def module_of(task: dict[str, Any]) -> str:
    keys = [key for key in task if key not in KEYWORDS and not key.startswith("with_")]
    assert len(keys) == 1, f"{task.get('name')}: {keys}"
    return keys[0]


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_defaults_are_the_specification(role: Path) -> None:
    """Names and values: a default that drifts from its specification is a lie in the README."""
    options = role_docs.options(role)
    path = role / "defaults" / "main.yml"
    defaults = (load(path) or {}) if path.exists() else {}
    required = {name for name, option in options.items() if option.get("required")}
    assert set(defaults) == set(options) - required
    for name, option in options.items():
        if name in required:
            assert "default" not in option, f"{name} is required and has a default"
        else:
            assert "default" in option, f"{name} has neither a default nor required: true"
            assert (type(defaults[name]), defaults[name]) == (type(option["default"]), option["default"]), name


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_defaults_are_literal(role: Path) -> None:
    path = role / "defaults" / "main.yml"
    assert not path.exists() or "{{" not in path.read_text()


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_variables_carry_the_roles_name(role: Path) -> None:
    for name, option in role_docs.options(role).items():
        assert name.startswith(f"{role.name}_"), name
        assert option.get("description"), f"{name} has no description"
        assert "type" in option, f"{name} has no type"
    internal = re.compile(rf"__{role.name}_[a-z0-9_]+")
    for path in (role / "vars").glob("**/*.yml"):
        for name in load(path) or {}:
            assert internal.fullmatch(name), f"{path.name}: {name}"
    for path, task in tasks(role):
        names = [task["register"]] if "register" in task else []
        if module_of(task) == "ansible.builtin.set_fact":
            names += [name for name in task["ansible.builtin.set_fact"] if name != "cacheable"]
        for name in names:
            assert internal.fullmatch(name), f"{path.name}: {name}"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_modules_are_named_in_full_and_are_core_or_ours(role: Path) -> None:
    for path, task in tasks(role):
        assert re.fullmatch(r"(ansible\.builtin|modelarts\.engine)\.[a-z0-9_]+", module_of(task)), (
            f"{path.name}: {task.get('name')}"
        )


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_tasks_say_what_they_do(role: Path) -> None:
    for path, task in tasks(role):
        assert re.match(r"[A-Z\"{]", str(task.get("name", ""))), f"{path.name}: {task}"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_files_are_written_whole_and_no_facts_are_gathered(role: Path) -> None:
    used = {module_of(task) for _, task in tasks(role)}
    assert not used & (EDITS | FACTS)


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_nothing_is_asynchronous(role: Path) -> None:
    """An asynchronous task leaves its module and arguments behind in the layer."""
    assert [task["name"] for _, task in tasks(role) if "async" in task] == []


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_readme_has_the_specification(role: Path) -> None:
    old, new = role_docs.rewritten(role)
    assert old == new, "run tools/role_docs.py"
    assert len(old.partition(role_docs.BEGIN)[0].split()) > 20, "a paragraph about the role belongs before the table"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_preflight_looks_at_nothing_but_arguments(role: Path) -> None:
    tasks = yaml.safe_load((role / "tasks/preflight.yml").read_text())
    assert {key for task in tasks for key in task if "." in key} == {"ansible.builtin.assert"}


# What changes a build host is tried on one of its own: tests/integration/buildhosts.
HOST_ROLES = ("base_image", "build_host")
# What compiles TensorRT-LLM is tried as a whole on an upstream in miniature: tests/integration/trtllm.
BUILDER_ROLES = tuple(
    f"trtllm_{step}" for step in ("tools", "source", "toolchain", "torch", "wheel", "compile", "backend")
)


@pytest.mark.parametrize(
    "role", [role for role in ROLES if role.name not in (*HOST_ROLES, *BUILDER_ROLES)], ids=lambda role: role.name
)
def test_there_is_a_scenario(role: Path) -> None:
    scenario = ROOT / "molecule" / role.name
    assert {"molecule.yml", "converge.yml"} <= {path.name for path in scenario.glob("*.yml")}
    assert list(scenario.glob("tests/test_*.py"))


SPEC = {
    "web_port": {"type": "int", "default": 8080, "description": "The C(port) | where."},
    "web_mode": {"type": "str", "choices": ["a", "b"], "default": "a", "description": ["One.", "Two."]},
    "web_names": {
        "type": "list",
        "elements": "dict",
        "required": True,
        "description": "X.",
        "options": {"key": {"type": "str", "required": True}},
    },
}


@pytest.fixture
def web(tmp_path: Path) -> Path:
    role = tmp_path / "web"
    (role / "meta").mkdir(parents=True)
    (role / "meta" / "argument_specs.yml").write_text(
        yaml.safe_dump({"argument_specs": {"main": {"options": SPEC}}}, sort_keys=False)
    )
    (role / "README.md").write_text(f"# web\n\nAbout.\n\n{role_docs.BEGIN}\nold\n{role_docs.END}\nafter\n")
    return role


def test_docs_are_written_once_and_then_fresh(web: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = ["--roles", str(web.parent)]
    assert role_docs.main([*where, "--check"]) == 1
    assert "web" in capsys.readouterr().err
    assert role_docs.main(where) == 0
    assert role_docs.main([*where, "--check"]) == 0
    readme = (web / "README.md").read_text()
    assert "| `web_port` | int | `8080` | The `port` \\| where. |" in readme
    assert '| `web_mode` | str | `"a"` | One. Two. One of `a`, `b`. |' in readme
    assert "| `web_names` | list of dict | required | X. |\n| `web_names.key` | str | required |" in readme
    assert readme.startswith("# web\n\nAbout.\n")
    assert readme.endswith(f"{role_docs.END}\nafter\n")
    assert "old" not in readme


@pytest.mark.parametrize("text", ["# web\n", "# web\n<!-- arguments: end -->\n<!-- arguments: begin -->\n"])
def test_docs_without_markers_are_refused(web: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    (web / "README.md").write_text(text)
    assert role_docs.main(["--roles", str(web.parent)]) == 1
    assert "README.md" in capsys.readouterr().err
    assert (web / "README.md").read_text() == text


def test_docs_without_specification_are_refused(web: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (web / "meta" / "argument_specs.yml").unlink()
    assert role_docs.main(["--roles", str(web.parent), "--check"]) == 1
    assert "argument_specs" in capsys.readouterr().err
