"""Fetches a repository at a tag and commit with all its submodules, over HTTPS only, checking everything that can be checked first.

Takes one argument, JSON: root, repository, tag, commit, submodules (path: commit), mirrors (beginning of an address: another),
archives (addresses that a later step will need), full (whether large files and nested submodules are wanted).
"""

from __future__ import annotations

import configparser
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, NoReturn

KINDS = {".a": b"!<arch>\n", ".so": b"\x7fELF"}


def refuse(message: str) -> NoReturn:
    """Ends with a message for the user."""
    print(f"refused: {message}", flush=True)
    sys.exit(1)


def https(url: str) -> str:
    """An address of a repository as one over HTTPS: nobody has a key for upstream's SSH."""
    found = re.fullmatch(r"(?:ssh://)?(?:[^@/]+@)([^:/]+)(?::\d+/|[:/])(.+)", url)
    return f"https://{found.group(1)}/{found.group(2)}" if found else url


class Fetch:
    """One fetch; the addresses' beginnings are replaced by those of mirrors, in git by its own configuration."""

    def __init__(self, asked: dict[str, Any]) -> None:
        self.asked = asked
        self.root = Path(asked["root"])
        settings = [(f"url.{mirror}.insteadOf", real) for real, mirror in asked["mirrors"].items()]
        settings += [("advice.detachedHead", "false"), ("safe.directory", "*")]
        self.environment = {
            **os.environ,
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_LFS_SKIP_SMUDGE": "1",
            "GIT_CONFIG_COUNT": str(len(settings)),
            **{f"GIT_CONFIG_{what}_{n}": pair[at] for n, pair in enumerate(settings) for at, what in enumerate(("KEY", "VALUE"))},
        }  # fmt: skip

    def git(self, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs git in a folder."""
        return subprocess.run(
            ["git", "-C", str(folder), *arguments], env=self.environment, capture_output=True, text=True, check=False
        )

    def output(self, folder: Path, *arguments: str) -> str:
        """Output of a git command that must succeed."""
        done = self.git(folder, *arguments)
        if done.returncode:
            refuse(f"git {' '.join(arguments[:2])} failed in {folder}: {done.stderr.strip()[-600:]}")
        return done.stdout

    def archives_are_there(self) -> None:
        """Asks for the head of each archive."""
        for url in self.asked["archives"]:
            real = next(
                (
                    mirror + url[len(begin) :]
                    for begin, mirror in self.asked["mirrors"].items()
                    if url.startswith(begin)
                ),
                url,
            )
            try:
                with urllib.request.urlopen(urllib.request.Request(real, method="HEAD"), timeout=60) as answer:  # noqa: S310
                    print(f"{real}: {answer.headers.get('Content-Length', '?')} bytes", flush=True)
            except (urllib.error.URLError, OSError) as error:
                refuse(
                    f"the archive {real} is not there: {error}. NVIDIA moves its archives: give the right address as trtllm_tensorrt_url, "
                    "or a mirror that has it in trtllm_mirrors"
                )  # fmt: skip

    def tag_is_where_it_was(self) -> None:
        """Asks where the tag points, before anything is fetched."""
        tag, wanted = self.asked["tag"], self.asked["commit"]
        said = self.git(Path("/"), "ls-remote", self.asked["repository"], f"refs/tags/{tag}", f"refs/tags/{tag}^{{}}")
        if said.returncode:
            refuse(f"{self.asked['repository']} cannot be reached: {said.stderr.strip()[-400:]}")
        points = [line.split()[0] for line in said.stdout.splitlines()]
        if not points:
            refuse(f"{self.asked['repository']} has no tag {tag}")
        if points[-1] != wanted:
            refuse(
                f"the tag {tag} was moved: it points to {points[-1]}, and {wanted} was asked for. What it points to now was never looked at: "
                "find out who moved it before you list its commit in a file of your own (trtllm_releases_file)"
            )

    def bring(self, folder: Path, url: str, commit: str, what: str) -> list[Path]:
        """Fetches commits and trees of a repository and of its submodules, but no files yet.

        :returns: every folder, outermost first.
        """
        url = https(url)
        print(f"asking {url} for {commit}", flush=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.output(folder, "init", "--quiet")
        self.output(folder, "remote", "add", "origin", url)
        done = self.git(folder, "fetch", "--quiet", "--depth=1", "--no-tags", "--filter=blob:none", "origin", commit)
        if done.returncode:
            refuse(f"{what} cannot be had: {url} at {commit}: {done.stderr.strip()[-400:]}")
        self.output(folder, "update-ref", "HEAD", commit)
        found = [folder]
        if folder != self.root and not self.asked["full"]:
            return found
        tree = self.output(folder, "ls-tree", "-r", "-z", "--full-tree", commit).split("\0")
        pins = {line.split("\t", 1)[1]: line.split()[2] for line in tree if line.startswith("160000 ")}
        if folder == self.root and pins != self.asked["submodules"]:
            refuse(f"{self.asked['tag']} has the submodules {pins}, and {self.asked['submodules']} were asked for")
        modules = configparser.RawConfigParser()
        if pins:
            text = self.output(folder, "show", f"{commit}:.gitmodules")
            modules.read_string(re.sub(r"^\s+", "", text, flags=re.M))
        urls = {section["path"]: section["url"] for name, section in modules.items() if name != "DEFAULT"}
        for path, pin in pins.items():
            if path not in urls:
                refuse(f"{what} has no address for its submodule {path}")
            found += self.bring(folder / path, urls[path], pin, f"the submodule {path} of {what}")
        return found

    def large_files(self, folder: Path) -> None:
        """Brings what Git LFS keeps elsewhere, and checks that it is what was promised."""
        promised = {}
        for name in filter(None, self.output(folder, "ls-files", "-z", "--", ":(attr:filter=lfs)").split("\0")):
            pointer = self.output(folder, "cat-file", "blob", f"HEAD:{name}")
            oid, size = (
                re.search(r"^oid sha256:([0-9a-f]{64})$", pointer, re.M),
                re.search(r"^size (\d+)$", pointer, re.M),
            )
            if oid and size:
                promised[name] = (oid.group(1), int(size.group(1)))
        if not promised:
            return
        print(
            f"{folder}: {len(promised)} large files, {sum(size for _, size in promised.values()) / 1e6:.1f} MB",
            flush=True,
        )
        pulled = self.git(folder, "lfs", "pull")
        for name, (oid, size) in promised.items():
            with (folder / name).open("rb") as file:
                head = file.read(len("version https://git-lfs"))
                file.seek(0)
                digest = (
                    hashlib.file_digest(file, "sha256").hexdigest()
                    if hasattr(hashlib, "file_digest")
                    else hashlib.sha256(file.read()).hexdigest()
                )
            kind = KINDS.get(Path(name).suffix, b"")
            if head.startswith(b"version https://git-lfs"):
                refuse(
                    f"{name} is still a pointer of Git LFS, {size} bytes are missing: {pulled.stderr.strip()[-400:]}. "
                    "The linker would fail on it after an hour; a mirror must have the repository's LFS objects, too"
                )
            if (folder / name).stat().st_size != size or digest != oid or not head.startswith(kind):
                refuse(
                    f"{name} is not what Git LFS promises: {size} bytes of sha256 {oid}; it has {(folder / name).stat().st_size} of {digest}"
                )
        if pulled.returncode:
            refuse(f"git lfs failed in {folder}: {pulled.stderr.strip()[-400:]}")

    def run(self) -> None:
        """Everything, cheap checks first."""
        self.archives_are_there()
        self.tag_is_where_it_was()
        shutil.rmtree(self.root, ignore_errors=True)
        folders = self.bring(self.root, self.asked["repository"], self.asked["commit"], "the backend")
        for folder in folders:
            self.output(folder, "checkout", "--quiet", "--force", "--detach", "HEAD")
        if self.asked["full"]:
            for folder in folders:
                self.large_files(folder)
        print(f"{len(folders)} repositories", flush=True)


if __name__ == "__main__":
    Fetch(json.loads(sys.argv[1])).run()
