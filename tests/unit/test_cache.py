"""Which entries of a cache are old, and who gets which image: what needs no engine."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import registry

from modelarts_engine import cache, fleet

NOW = datetime.datetime.now(datetime.UTC)


def entry(days: float, *layers: str, used: str = "", stage: str = "proxy") -> cache.Entry:
    return cache.Entry(f"{days}", stage, [], NOW - datetime.timedelta(days=days), 1, layers or (f"of {days}",), used)


@pytest.mark.parametrize(("text", "wanted"), [("30d", 2_592_000), ("12h", 43_200), ("5m", 300), ("2w", 1_209_600)])
def test_times_have_units(text: str, wanted: float) -> None:
    assert cache.seconds(text) == wanted


@pytest.mark.parametrize("text", ["30", "d", "-1d", "1.5d", "1y", "", "1d "])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="--older"):
        cache.seconds(text)


def test_only_what_is_old_unused_and_not_among_the_newest_goes() -> None:
    entries = [entry(1), entry(5), entry(40), entry(41, used="by a latest image"), entry(42)]
    assert [each.key for each in cache.old(entries, cache.seconds("30d"), 0)] == ["40", "42"]
    assert [each.key for each in cache.old(entries, cache.seconds("30d"), 4)] == ["42"]
    assert cache.old(entries, cache.seconds("60d"), 0) == []
    assert [each.key for each in cache.old(entries, 0, 1)] == ["5", "40", "42"]


def test_what_a_kept_entry_is_made_of_stays_however_old() -> None:
    entries = [
        entry(1, "base", "engine", "proxy"),
        entry(39, "base", "other"),
        entry(40, "base", "engine"),
        entry(41, "base"),
    ]
    month = cache.seconds("30d")
    assert [each.key for each in cache.old(entries, month, 0)] == ["39"]
    assert [each.key for each in cache.old(entries[1:], month, 0)] == ["39", "40", "41"]
    replaced = entry(42, "base", stage=cache.REPLACED)
    assert [each.key for each in cache.old([*entries, replaced], month, 0)] == ["39", "42"], "none asks for it"
    young = entry(1, "base", "other", stage=cache.REPLACED)
    assert [each.key for each in cache.old([*entries, young], month, 0)] == ["39"], "nor for what it is made of"


class Registry:
    """A registry with these manifests under these tags."""

    def __init__(self, **tags: str) -> None:
        self._tags = tags

    def tags(self, repository: str) -> list[str]:
        return [name.replace("_", ".") for name in self._tags]

    def digest(self, repository: str, tag: str) -> str:
        return self._tags[tag.replace(".", "_")]

    def manifest(self, repository: str, digest: str) -> registry.Manifest:
        return registry.Manifest(digest, registry.SCHEMA2, digest, ({"size": 3},))

    def config(self, repository: str, digest: str) -> dict[str, Any]:
        when = (NOW - datetime.timedelta(days=ord(digest) - ord("a"))).isoformat()
        return {"created": when, "rootfs": {"diff_ids": [digest]}}


def test_a_manifest_is_one_entry_whatever_its_tags() -> None:
    one, two, seal = "1" * 64, "2" * 64, "5" * 32
    made = Registry(
        **{
            one: "c",
            f"{one}_{seal}": "c",
            f"base_{two}": "c",
            two: "b",
            "1_4_0": "b",
            f"{two}_{seal}": "a",
            "other": "d",
        }
    )
    entries = cache.shared(made, "org/cache")
    assert [(each.key, each.stage, each.names, each.used) for each in entries] == [
        (two, "base", ["b"], "tagged 1.4.0"),
        (one, "base", ["c"], ""),
        (two, cache.REPLACED, ["a"], ""),
    ]
    assert [each.names for each in cache.old(entries, -1, 0)] == [["c"], ["a"]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give a list"),
        ("image: triton", "give a list"),
        ("[{name: x}]", "entry 1: each entry needs an image"),
        ("[{image: nosuch}]", "entry 1: there is no recipe for nosuch; there is triton"),
        ("[{image: triton}, {image: triton}]", "entry 2: triton is there twice"),
        ("[{image: triton, hosts: x}]", "entry 1: hosts is not one of"),
        ("[{image: triton, variables: [x]}]", "entry 1: variables is not one of"),
        ("[{image: triton", "flow"),
        ("[{image: triton, variables: {day: 2026-01-01}}]", "entry 1: day is datetime.date"),
        ("[" * 5000, "recursion"),
    ],
)
def test_a_matrix_that_is_wrong_is_refused_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "images.yml").write_text(text)
    with pytest.raises(ValueError, match=said):
        fleet.read(str(tmp_path / "images.yml"), ["triton"])


def test_images_go_to_the_hosts_that_are_named_and_in_their_inventory(tmp_path: Path) -> None:
    (tmp_path / "one.yml").write_text("build_hosts: {hosts: {a: {}, b: {}}}\nother: {hosts: {c: {}}}\n")
    jobs = [fleet.Job("triton", "x", None, {}), fleet.Job("triton", "y", None, {})]
    inventory = str(tmp_path / "one.yml")
    assert fleet.assign(jobs, [], inventory) == {0: ["a", "b"], 1: ["a", "b"]}
    assert fleet.assign(jobs, ["c"], inventory) == {0: ["c"], 1: ["c"]}
    with pytest.raises(ValueError, match="--hosts: d: not in the inventory"):
        fleet.assign(jobs, ["a", "d"], inventory)
