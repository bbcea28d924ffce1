"""Collects what an image needs of a builder in which TensorRT-LLM and its backend were compiled.

Usage: collect.py ROOT OUTPUTS "FILE …". OUTPUTS/root is laid out as the image's root; OUTPUTS/removed lists what an image must remove
of its base, OUTPUTS/libraries the folders that the dynamic linker must search, OUTPUTS/packages.json the packages and their versions.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
OURS = Path("/opt/modelarts-engine/trtllm")
TENSORRT = Path("/usr/local/tensorrt/lib")
# The driver's libraries, which a GPU host gives to a container, and the beginnings of what is in them.
DRIVER = re.compile(r"lib(cuda|nvidia-ml|nvidia-[\w-]+)\.so")
DRIVER_SYMBOL = re.compile(r"(cu|nvml)[A-Z]")


def refuse(message: str) -> None:
    """Ends with a message for the user."""
    sys.exit(f"refused: {message}")


class Collect:
    """One collection."""

    def __init__(self, root: Path, outputs: Path) -> None:
        self.source, self.outputs, self.image = root / "source", outputs, outputs / "root"
        # What came with PyTorch from an image of its own.
        notes = root / "torch.list"
        self.with_torch = notes.read_text(errors="surrogateescape").splitlines() if notes.is_file() else []
        # Size and time (seconds) by path, as the first role of the builder noted them.
        self.base: dict[str, tuple[int, int]] = {}
        for line in (root / "base.list").read_text(errors="surrogateescape").splitlines():
            size, seconds, path = line.split(" ", 2)
            self.base[path] = (int(size), int(seconds.partition(".")[0]))

    def is_new(self, path: Path) -> bool:
        """Whether the base has not this very file."""
        stat = path.lstat()
        return self.base.get(str(path)) != (stat.st_size, int(stat.st_mtime))

    def take(self, path: Path, to: Path | None = None) -> None:
        """Copies a file or link, as it is, to where the image has it."""
        target = self.image / str(to or path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.is_symlink() and to is None:
            target.unlink(missing_ok=True)
            target.symlink_to(path.readlink())
            if path.exists() and str(path.resolve()) != str(path) and self.is_new(path.resolve()):
                self.take(path.resolve())
        else:
            shutil.copy2(path, target)

    def packages(self) -> dict[str, str]:
        """Takes the wheel and every package that it or the backend's own models require, so far as they are not the base's."""
        wanted = ["tensorrt_llm"]
        requirements = self.source / "requirements.txt"
        if requirements.is_file():
            wanted += [line for line in requirements.read_text().splitlines() if re.match(r"[A-Za-z]", line)]
        # PyTorch imports some of these, such as its compiler triton, that its metadata does not name.
        wanted += re.findall(r"/([\w.]+)-[^/]+\.dist-info/METADATA$", "\n".join(self.with_torch), re.M)
        found: dict[str, str] = {}
        while wanted:
            requirement = wanted.pop()
            name = re.sub(r"[-_.]+", "-", re.split(r"[^\w.-]", requirement, maxsplit=1)[0]).lower()
            if name in found or ("extra ==" in requirement):
                continue
            try:
                package = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                continue  # of another platform, or optional
            found[name] = package.version
            wanted += package.requires or []
            for file in package.files or []:
                path = Path(os.path.normpath(str(package.locate_file(file))))
                if path.is_file() and "__pycache__" not in path.parts and self.is_new(path):
                    self.take(path)
        if "tensorrt-llm" not in found:
            refuse("tensorrt_llm is not installed in the builder, though its wheel was made")
        return dict(sorted(found.items()))

    def beside_torch(self) -> None:
        """Takes the libraries that came with PyTorch and are no package's; MKL opens some of its own by name only."""
        for path in map(Path, self.with_torch):
            library = ".so" in path.suffixes and "dist-packages" not in path.parts
            if library and path.is_file() and self.is_new(path):
                self.take(path)

    def removed(self) -> list[str]:
        """Packages' folders of the base that the builder purged, such as its own TensorRT."""
        gone = {path for path in self.base if "/dist-packages/" in path and not os.path.lexists(path)}
        tops = {re.sub(r"(/dist-packages/[^/]+).*", r"\1", path) for path in gone}
        return sorted(top for top in tops if not os.path.lexists(top))

    def backend(self, names: list[str]) -> None:
        """Takes the backend's files from where upstream's script left them."""
        build = self.source / "inflight_batcher_llm/build"
        for name in names:
            places = [
                *build.rglob(name),
                *BACKEND.glob(name),
                *self.source.joinpath("tensorrt_llm/cpp/build").rglob(name),
            ]
            real = [path for path in places if path.is_file()]
            if not real:
                refuse(f"upstream's build made no {name}; the release's installed_files do not fit it")
            self.take(real[0], BACKEND / name)

    def tensorrt(self) -> None:
        """Takes the libraries of TensorRT; what only a compiler needs stays."""
        for path in sorted(TENSORRT.glob("*.so*")):
            if "_win" not in path.name:
                self.take(path.resolve(), TENSORRT / path.name) if not path.is_symlink() else self.link(path)

    def link(self, path: Path) -> None:
        """Takes a link beside its target as a link."""
        target = self.image / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.symlink_to(path.readlink().name)

    def libraries(self) -> list[str]:
        """Folders of the collected libraries, searched by the linker."""
        folders = {path.parent for path in self.image.rglob("*.so*") if path.is_file()}
        inside = sorted("/" + str(folder.relative_to(self.image)) for folder in folders)
        wanted = [folder for folder in inside if re.search(r"(/libs?|/lib64|/tensorrt/lib|/tensorrt_libs)$", folder)]
        return [*wanted, str(BACKEND), "/opt/tritonserver/lib"]

    def needed(self, folders: list[str]) -> None:
        """Takes each library that a collected one needs and the base has not; refuses those with missing symbols."""
        Path("/etc/ld.so.conf.d/000-trtllm-builder.conf").write_text(
            "\n".join([*folders, f"{self.image}{BACKEND}"]) + "\n"
        )
        subprocess.run(["ldconfig"], check=True)
        clean = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        problems: list[str] = []
        for path in sorted(self.image.rglob("*")):
            if not path.is_file() or path.is_symlink() or path.open("rb").read(4) != b"\x7fELF":
                continue
            ours = path.is_relative_to(self.image / str(BACKEND).lstrip("/"))
            done = subprocess.run(
                ["ldd", "-r" if ours else "-d", str(path)], env=clean, capture_output=True, text=True, check=False
            )
            for line in (done.stdout + done.stderr).splitlines():
                resolved = re.search(r"=> (/\S+)", line)
                if resolved:
                    library = Path(resolved.group(1))
                    known = library.is_relative_to(self.image) or (self.image / str(library).lstrip("/")).exists()
                    if not known and self.is_new(library.resolve()) and self.is_new(library):
                        self.take(library.resolve(), OURS / "lib" / library.name)
                elif ours and self.is_problem(line):
                    problems.append(line.strip())
        if problems:
            refuse(
                f"the backend was compiled, but cannot be loaded: {'; '.join(sorted(set(problems))[:4])}. Parts of it were compiled for different "
                "versions or C++ ABIs: PyTorch, TensorRT and the base have to be those that the release is listed with"
            )

    @staticmethod
    def is_problem(line: str) -> bool:
        """Whether a line of ldd says that something is missing that no driver brings."""
        symbol = re.search(r"undefined symbol:\s+(\S+)", line)
        if symbol:
            return not DRIVER_SYMBOL.match(symbol.group(1))
        return "not found" in line and not DRIVER.search(line)

    def run(self, names: list[str]) -> None:
        """Everything."""
        packages = self.packages()
        self.beside_torch()
        self.tensorrt()
        self.backend(names)
        folders = self.libraries()
        self.needed(folders)
        folders = [*folders, str(OURS / "lib")] if (self.image / str(OURS / "lib").lstrip("/")).is_dir() else folders
        for path in self.image.rglob("*"):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        (self.outputs / "libraries").write_text("".join(f"{folder}\n" for folder in folders))
        (self.outputs / "removed").write_text("".join(f"{path}\n" for path in self.removed()))
        (self.outputs / "packages.json").write_text(json.dumps(packages, indent=1))
        size = sum(path.lstat().st_size for path in self.image.rglob("*") if path.is_file())
        print(f"{len(packages)} packages, {size / 1e6:.1f} MB")


if __name__ == "__main__":
    Collect(Path(sys.argv[1]), Path(sys.argv[2])).run(sys.argv[3].split())
