# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The releases of the TensorRT-LLM backend, and which of them fits which base by which route."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.modelarts.engine.plugins.module_utils import keys

ROOT = Path(__file__).resolve().parents[2]
LISTED = ROOT / "meta/trtllm_releases.yml"
SCHEMA = ROOT / "meta/trtllm_releases.schema.yml"

# Which list of a release says what base a route takes.
BASES = {"image": "ships_in", "source": "build_bases"}
_RELEASE = re.compile(r"v\d+\.\d+\.\d+")
_BASE = re.compile(r"\d\d\.\d\d")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
TENSORRT_VERSION = re.compile(r"\d+\.\d+\.\d+\.\d+")


def load(path: Path = LISTED) -> dict[str, dict[str, Any]]:
    """Every release of a file by its tag, checked and with the schema's defaults.

    :raises keys.InputError: the file cannot be read, or says what the schema does not allow.
    """
    try:
        data = keys.load(path.read_text())
    except (OSError, UnicodeDecodeError, keys.yaml.YAMLError) as error:
        raise keys.InputError(f"trtllm_releases_file: {path} cannot be read: {error}") from error
    releases = data.get("releases") if isinstance(data, dict) else None
    if not isinstance(releases, dict) or not releases or set(data) != {"releases"}:
        raise keys.InputError(
            f"trtllm_releases_file: {path} must hold one mapping, releases, as meta/trtllm_releases.yml does"
        )
    schema = keys.load(SCHEMA.read_text())
    return {str(name): _checked(str(name), row, schema, path) for name, row in releases.items()}


def _checked(name: str, row: Any, schema: Mapping[str, Any], path: Path) -> dict[str, Any]:
    where = f"{path.name}: {name}"
    if not isinstance(row, dict):
        raise keys.InputError(f"{where}: it is no mapping")
    parts = (
        ("", row, schema),
        *((f"{part}.", row.get(part), schema[part]["options"]) for part in ("tensorrt", "engine_build")),
    )
    unknown = [
        f"{prefix}{key} ({keys.nearest(str(key), options)})"
        for prefix, values, options in parts
        if isinstance(values, dict)
        for key in values
        if key not in options
    ]  # fmt: skip
    if unknown:
        raise keys.InputError(f"{where}: the schema does not know {', '.join(unknown)}")
    release = keys.validated(schema, row, where, "meta/trtllm_releases.schema.yml")
    release["tensorrt"] = {key: value for key, value in release["tensorrt"].items() if value is not None}
    wrong = {
        "the tag must be v and three numbers": not _RELEASE.fullmatch(name),
        "commits must have 40 hexadecimal digits": not all(
            _COMMIT.fullmatch(str(commit)) for commit in (release["commit"], *release["submodule_commits"].values())
        ),
        "bases must be YY.MM": not all(_BASE.fullmatch(base) for key in BASES.values() for base in release[key]),
        "tensorrt.sha256 must have 64 hexadecimal digits": not _SHA256.fullmatch(release["tensorrt"].get("sha256") or "0" * 64),
        "the route image needs ships_in": "image" in release["routes"] and not release["ships_in"],
        "the route source needs build_bases, install_scripts and torch": "source" in release["routes"]
        and not (release["build_bases"] and release["install_scripts"] and release.get("torch")),
        "torch from an image needs torch_image and torch_paths": release.get("torch") == "image"
        and not (release.get("torch_image") and release["torch_paths"]),
        "torch_image_digest must be sha256: and 64 hexadecimal digits": not _DIGEST.fullmatch(
            release.get("torch_image_digest") or f"sha256:{'0' * 64}"
        ),
    }  # fmt: skip
    if any(wrong.values()):
        raise keys.InputError(f"{where}: {'; '.join(said for said, is_wrong in wrong.items() if is_wrong)}")
    return release


def _months(base: str) -> int:
    year, month = base.split(".")
    return int(year) * 12 + int(month)


def _version(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.removeprefix("v").split(".")))


def _nearest(releases: Mapping[str, Any], release: str) -> list[str]:
    """The listed releases just before and just after one that is not listed."""
    ordered = sorted(releases, key=_version)
    before = [name for name in ordered if _version(name) < _version(release)]
    after = [name for name in ordered if _version(name) > _version(release)]
    return before[-1:] + after[:1]


def pairs(releases: Mapping[str, Mapping[str, Any]], route: str) -> list[tuple[str, str]]:
    """Every (release, base) that is listed for a route, in order."""
    return [
        (name, base)
        for name in sorted(releases, key=_version)
        if route in releases[name]["routes"]
        for base in releases[name][BASES[route]]
    ]


def choose(
    release: str, *, base: str = "", route: str = "", allow_untested: bool = False, path: Path = LISTED
) -> dict[str, Any]:
    """What is known of a release, with its tag as `release` and the route that is taken as `route`.

    :param base: release of the Triton image (`24.07`) that is built on; without it the pair is not checked.
    :param route: `image` or `source`; without it the first that the release offers.
    :param allow_untested: whether a pair that is not listed is taken all the same.
    :raises keys.InputError: the release, the route or the pair is not listed; the nearest listed ones are named.
    """
    releases = load(path)
    if not _RELEASE.fullmatch(release):
        raise keys.InputError(f"trtllm_release: {release!r} is no tag; give one such as {max(releases, key=_version)}")
    if release not in releases:
        raise keys.InputError(
            f"trtllm_release: {release} is not listed; the nearest that are: {' and '.join(_nearest(releases, release))} "
            f"(all: {', '.join(sorted(releases, key=_version))})"
        )
    row = releases[release]
    route = route or row["routes"][0]
    if route not in BASES:
        raise keys.InputError(f"trtllm_route: {route!r} is none; give image or source")
    if route not in row["routes"]:
        listed = {name: each for name, each in releases.items() if route in each["routes"]}
        why = "no published image holds exactly it" if route == "image" else "its backend is built inside TensorRT-LLM"
        raise keys.InputError(
            f"trtllm_route: {release} cannot be had by the route {route}: {why}. Take trtllm_route={row['routes'][0]}, "
            f"or the nearest release with this route: {' or '.join(_nearest(listed, release))}"
        )
    if base and not _BASE.fullmatch(base):
        raise keys.InputError(f"trtllm_base: {base!r} is no release of the Triton image; give YY.MM such as 24.07")
    if base and base not in row[BASES[route]] and not allow_untested:
        raise keys.InputError(
            f"trtllm_base: {release} on {base} is not a listed pair for the route {route}. Listed nearest by: "
            f"{_near_pairs(pairs(releases, route), release, base)}. trtllm_allow_untested=true takes it all the same"
        )
    return {**row, "release": release, "route": route}


def _near_pairs(listed: list[tuple[str, str]], release: str, base: str) -> str:
    same_release = [pair for pair in listed if pair[0] == release]
    distance = min(abs(_months(pair[1]) - _months(base)) for pair in listed)
    near_base = [pair for pair in listed if abs(_months(pair[1]) - _months(base)) == distance]
    said = [("release", same_release), ("base", near_base)]
    return "; ".join(f"{by} {', '.join(f'{name} on {its}' for name, its in found)}" for by, found in said if found)
