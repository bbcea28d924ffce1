"""Compares meta/trtllm_releases.yml with the tags of a clone of upstream's repository.

    git clone --bare https://github.com/triton-inference-server/tensorrtllm_backend upstream.git
    python tools/check_trtllm_releases.py upstream.git

Prints each difference; exit code 1 where there is one. Looked at: where the tag points, the submodules' pins, the base, the scripts and
the source of PyTorch of its Dockerfile with what it copies of that, TensorRT where the repository names it, and the folder of the templates.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.modelarts.engine.plugins.module_utils import trtllm  # noqa: E402

DOCKERFILE = "dockerfile/Dockerfile.trt_llm_backend"
# From v0.12.0 on a second Dockerfile names TensorRT's version and archive.
NAMES_TENSORRT = "dockerfile/Dockerfile.triton.trt_llm_backend"


class Upstream:
    """A repository that is only read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def git(self, *arguments: str) -> str:
        """Output of a git command, empty where it fails."""
        done = subprocess.run(
            ["git", "-C", str(self.path), *arguments], capture_output=True, text=True, check=False
        )  # fmt: skip
        return done.stdout.strip() if done.returncode == 0 else ""


def _argument(dockerfile: str, name: str) -> str:
    found = re.search(rf"^ARG {name}=\"?([^\"\s]+)", dockerfile, re.M)
    return found.group(1) if found else ""


def differences(upstream: Upstream, name: str, row: dict[str, Any]) -> Iterator[str]:
    """What a release's row says and the repository does not."""
    compared: dict[str, tuple[Any, Any]] = {"commit": (row["commit"], upstream.git("rev-parse", f"{name}^{{commit}}"))}
    pins = {
        line.split("\t")[1]: line.split()[2]
        for line in upstream.git("ls-tree", "-r", name).splitlines()
        if line.startswith("160000")
    }
    compared["submodule_commits"] = (row["submodule_commits"], pins)
    if "source" in row["routes"]:
        dockerfile = upstream.git("show", f"{name}:{DOCKERFILE}")
        kind = _argument(dockerfile, "TORCH_INSTALL_TYPE")
        scripts = re.findall(r"bash /tmp/(install_\w+\.sh)", dockerfile)
        compared |= {
            "build_bases": (row["build_bases"], [_argument(dockerfile, "BASE_TAG").removesuffix("-py3")]),
            "torch": (row["torch"], {"pypi": "pypi", "skip": "image"}.get(kind, kind)),
            "torch_image": (row.get("torch_image", ""), _argument(dockerfile, "PYTORCH_IMAGE")),
            "torch_paths": (row["torch_paths"], re.findall(r"^COPY --from=pytorch_image (\S+) ", dockerfile, re.M)),
            "install_scripts": (row["install_scripts"], scripts),
            "templates": (
                "tree",
                upstream.git("cat-file", "-t", f"{name}:{row['templates']}/inflight_batcher_llm"),
            ),
        }
        named = upstream.git("show", f"{name}:{NAMES_TENSORRT}")
        if version := _argument(named, "TRT_VER"):
            url = _argument(named, "RELEASE_URL_TRT_x86").replace("${TRT_VER}", version)
            compared["tensorrt"] = ((row["tensorrt"]["version"], row["tensorrt"].get("url")), (version, url))
    for what, (listed, found) in compared.items():
        if listed != found:
            yield f"{name}: {what}: listed {listed}, upstream has {found or 'nothing'}"


def main(argv: list[str]) -> int:
    """Compares; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository", type=Path, help="a clone with all tags")
    parser.add_argument("--releases", type=Path, default=trtllm.LISTED, help="the file that is compared")
    arguments = parser.parse_args(argv)
    upstream = Upstream(arguments.repository)
    releases = trtllm.load(arguments.releases)
    found = [line for name, row in releases.items() for line in differences(upstream, name, row)]
    print(*found, sep="\n", end="\n" if found else "")
    print(f"{len(releases)} releases compared, {len(found)} differences")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
