"""Starts a package on the TensorRT-LLM backend: engine, templates, server. Runs inside the image: Python 3.8, standard library.

Exit codes: those of what is run are passed on; 2 where the package, the image and the host do not fit each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Iterator, Mapping, NoReturn, Sequence

import request_types
import templates

IMAGE = Path(os.environ.get("MODELARTS_ENGINE_ROOT", "/opt/modelarts-engine"))
PACKAGE = Path(__file__).resolve().parent.parent
SPARE = 64 << 20  # bytes that a disk keeps free


class Refusal(Exception):
    """Package, image and host do not fit each other; the message says what does not, and what to do."""


def say(text: str) -> None:
    """A line of the log."""
    print(f"triton_serving: {text}", file=sys.stderr, flush=True)


def gb(count: float) -> str:
    """Bytes as people say them, decimal."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def read(path: Path, what: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise Refusal(f"{path}: {what} cannot be read: {error}") from error
    if not isinstance(data, dict):
        raise Refusal(f"{path}: {what} is no JSON object")
    return data


def versions(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the image says of itself; a package made for another release is refused."""
    found = read(IMAGE / "trtllm/versions.json", "what the image says of its TensorRT-LLM backend")
    for name in ("release", "commit"):
        if settings.get(name) and found.get(name) != settings[name]:
            raise Refusal(
                f"the package was made for {name} {settings[name]} of the TensorRT-LLM backend, the image has {found.get(name)}; "
                f"make the package again with trtllm_model_release={found.get('release')}, or use the image of {settings['release']}"
            )
    return found


def check_files(settings: Mapping[str, Any]) -> None:
    """Refuses a package that did not arrive whole."""
    wrong = []
    for name, size in settings["model"]["files"].items():
        path = PACKAGE / settings["model"]["name"] / name
        try:
            found = path.stat().st_size
        except OSError as error:
            wrong.append(f"{path}: {error.strerror}")
            continue
        if found != size:
            wrong.append(f"{path} has {found} bytes of {size}")
    if wrong:
        raise Refusal(f"the package is not whole: {'; '.join(wrong)}. Upload the folder again")


def gpus(world_size: int) -> tuple[str, int]:
    """Compute capability (`8.0`) and memory in bytes of the GPUs that the model is spread over."""
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,memory.total", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    except OSError as error:
        raise Refusal(f"no GPU: nvidia-smi cannot be run ({error}); the container must be given GPUs") from error
    if done.returncode:
        raise Refusal(f"no GPU: nvidia-smi ends with {done.returncode}: {done.stdout.strip()[:300]}")
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    if any(len(row) != 3 or not re.fullmatch(r"\d+\.\d+", row[1]) or not row[2].isdigit() for row in rows):
        raise Refusal(f"nvidia-smi answers what is not understood: {done.stdout.strip()[:300]}")
    if len(rows) < world_size:
        raise Refusal(
            f"the model is spread over {world_size} GPUs, the container has {len(rows)}; see trtllm_model_tensor_parallel"
        )
    used = rows[:world_size]
    if len({row[1] for row in used}) > 1:
        raise Refusal(f"the GPUs are of different architectures: {', '.join(' '.join(row[:2]) for row in used)}")
    return used[0][1], min(int(row[2]) for row in used) << 20


def check_gpus(settings: Mapping[str, Any], found: Mapping[str, Any], architecture: str, memory: int) -> None:
    """Refuses GPUs that the backend was not compiled for, or that the weights do not fit on."""
    digits = architecture.replace(".", "")
    names = found.get("cuda_architectures") or []
    listed = names if isinstance(names, list) else re.split(r"[;, ]+", str(names))
    compiled = {"".join(re.findall(r"\d+", str(name))): "virtual" in str(name) for name in listed}
    numbers = {name: virtual for name, virtual in compiled.items() if name}
    if numbers and digits not in numbers and not any(v and int(name) <= int(digits) for name, v in numbers.items()):
        raise Refusal(
            f"the image's backend was compiled for the CUDA architectures {', '.join(map(str, listed))}, this GPU has {digits}: "
            "it would end with 'no kernel image'. Build the image with this architecture in trtllm_cuda_architectures"
        )
    share = settings["engine"]["bytes"] / settings["engine"]["world_size"]
    if share > memory:
        raise Refusal(
            f"each GPU has {gb(memory)}, the weights alone need {gb(share)} on each; use a larger GPU, more of them "
            "(trtllm_model_tensor_parallel), or weights of less precision (trtllm_model_weight_only)"
        )


def key_of(settings: Mapping[str, Any], found: Mapping[str, Any], architecture: str) -> str:
    """Names an engine by everything that decides what it is: model, release, GPU architecture and the tools' flags."""
    parts = {
        "model": settings["model"]["digest"],
        "image": found,
        "architecture": architecture,
        "world_size": settings["engine"]["world_size"],
        "steps": settings["engine"]["steps"],
    }
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def complete(folder: Path) -> bool:
    """Whether an engine is whole: every file that was there when it was finished has its size."""
    try:
        files = json.loads((folder / "complete.json").read_text())["files"]
        return bool(files) and all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def find(key: str, folders: Sequence[Path]) -> Path | None:
    """An engine of that key that is there already."""
    for folder in folders:
        if complete(folder / key):
            return folder / key
        if (folder / key).exists():
            say(f"{folder / key} is not whole and is not used")
    return None


def place(folders: Sequence[Path], needed: int) -> Path:
    """The first folder that can be written to and has room."""
    why = []
    for folder in folders:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=str(folder)):
                pass
            free = shutil.disk_usage(str(folder)).free
        except OSError as error:
            why.append(f"{folder}: {error.strerror}")
            continue
        if free >= needed + SPARE:
            return folder
        why.append(f"{folder}: {gb(free)} free")
    raise Refusal(
        f"no room for the engine, which needs {gb(needed)} while it is built ({'; '.join(why)}). Mount a disk at {folders[0]}, "
        "or build the engine into the package beforehand: ./runner.py package … --prebuild"
    )


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """One builder at a time; on a file system without locks, none is kept from building."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another container is building this engine; waiting for it")
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            say(f"{path.parent} knows no locks ({error.strerror})")
        yield


def stop(number: int, _frame: Any) -> NoReturn:
    """A signal ends what is under way, in order."""
    raise SystemExit(128 + number)


def step(command: Sequence[str], cwd: Path) -> None:
    """Runs a tool; its failure is this process's end, with its exit code."""
    say(f"running {' '.join(command)}")
    try:
        child = subprocess.Popen(list(command), cwd=str(cwd), start_new_session=True)
    except OSError as error:
        raise Refusal(
            f"{command[0]} cannot be run: {error.strerror}; the image has no engine-build tool of its release"
        ) from error
    try:
        code = child.wait()
    except BaseException:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(timeout=5)
        raise
    if code < 0:
        hint = "; the host's or the container's memory may be too small" if -code == signal.SIGKILL else ""
        say(f"{command[0]} was killed by {signal.Signals(-code).name}{hint}")
        raise SystemExit(128 - code)
    if code:
        say(f"{command[0]} ended with {code}; what it said is above")
        raise SystemExit(code)


def build(settings: Mapping[str, Any], key: str, folder: Path) -> Path:
    """Builds the engine beside its place and renames it: it is there whole or not at all."""
    engine = settings["engine"]
    with locked(folder / f".{key}.lock"):
        if complete(folder / key):
            return folder / key
        for old in [*folder.glob(f".{key}.*.partial"), folder / key]:  # of builders that are gone: the lock is ours
            shutil.rmtree(str(old), ignore_errors=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{key}.", suffix=".partial", dir=str(folder)))
        try:
            paths = {
                "{python}": sys.executable,
                "{tools}": str(IMAGE / "trtllm" / engine["folder"]),
                "{model}": str(PACKAGE / settings["model"]["name"]),
                "{checkpoint}": str(scratch / "checkpoint"),
                "{engine}": str(scratch / "engine"),
            }
            started = time.monotonic()
            for words in engine["steps"]:
                step([re.sub(r"\{\w+\}", lambda match: paths[match[0]], word) for word in words], scratch)
            made = scratch / "engine"
            files = {path.name: path.stat().st_size for path in sorted(made.glob("*")) if path.is_file()}
            if sum(name.endswith(".engine") and size > 0 for name, size in files.items()) < engine["world_size"]:
                raise Refusal(
                    f"the engine builder ended without an error and wrote no engine for each of {engine['world_size']} GPUs: {files}"
                )
            if "config.json" not in files:
                raise Refusal(f"the engine builder ended without an error and wrote no config.json: {files}")
            (made / "complete.json").write_text(json.dumps({"key": key, "files": files}))
            made.rename(folder / key)
            say(f"built the engine {key} in {time.monotonic() - started:.0f} s, {gb(sum(files.values()))}")
        finally:
            shutil.rmtree(str(scratch), ignore_errors=True)
    return folder / key


def repository(settings: Mapping[str, Any], engine: Path, dest: Path | None) -> None:
    """Fills the release's templates and writes the model repository; with no place to write, only checks that they fill."""
    folder = IMAGE / "trtllm/all_models/inflight_batcher_llm"
    fixed = {
        **settings["fixed"],
        "engine_dir": str(engine),
        "tokenizer_dir": str(PACKAGE / settings["model"]["name"]),
    }
    try:
        filled = templates.fill(folder, settings["values"], fixed, settings["leave_out"])
        sources: dict[str, str] = {}
        if settings["request_types"] == "tutorial":
            filled, sources = request_types.adapt(filled, settings["fixed"]["triton_max_batch_size"])
    except (templates.TemplateError, OSError) as error:
        raise Refusal(f"the templates of {settings['release']} cannot be filled:\n{error}") from error
    if dest is None:
        return
    shutil.rmtree(str(dest), ignore_errors=True)
    for model, text in filled.items():
        source = sources.get(model, model)
        if source.endswith(".py"):
            (dest / model / "1").mkdir(parents=True)
            shutil.copyfile(str(Path(__file__).with_name(source)), str(dest / model / "1/model.py"))
        else:
            ignored = shutil.ignore_patterns("__pycache__", "config.pbtxt")
            shutil.copytree(str(folder / source), str(dest / model), ignore=ignored)
            (dest / model / "1").mkdir(exist_ok=True)
        (dest / model / "config.pbtxt").write_text(text)


def server(settings: Mapping[str, Any], models: Path) -> list[str]:
    """The server's command line; with more than one GPU, one server for each under mpirun, as the backend wants it."""
    start = [str(IMAGE / "bin/start"), str(models), "--disable-auto-complete-config"]
    world_size = settings["engine"]["world_size"]
    if world_size == 1:
        return start
    command = ["mpirun", "--bind-to", "none"]
    for rank in range(world_size):
        command += [*([":"] if rank else []), "-n", "1", *start]
        command += ["--model-control-mode=explicit", "--load-model=tensorrt_llm"] if rank else []
        command += [f"--backend-config=python,shm-region-prefix-name=prefix{rank}_"]
    return command


def check_tools(settings: Mapping[str, Any]) -> None:
    """Refuses an image without the tools that build the engine."""
    tools = IMAGE / "trtllm" / settings["engine"]["folder"]
    for words in settings["engine"]["steps"]:
        for word in words[:2]:
            path = Path(word.replace("{tools}", str(tools)))
            if "{tools}" in word and not path.is_file():
                raise Refusal(f"the image has no {path}, the engine-build tool of {settings['release']}")
        if not words[0].startswith("{") and not shutil.which(words[0]):
            raise Refusal(f"the image has no {words[0]}, the engine-build tool of {settings['release']}")


def run(arguments: Sequence[str]) -> int:
    """Does what is asked for; serving replaces this process."""
    settings = read(Path(__file__).with_name("settings.json"), "the package's settings")
    found = versions(settings)
    mode = arguments[0] if arguments else "serve"
    if mode not in ("serve", "--check", "--prebuild") or len(arguments) != {"--prebuild": 2, "--check": 1}.get(mode, 0):
        raise Refusal("it takes nothing, --check, or --prebuild DIR")
    check_files(settings)
    repository(settings, Path("/checked"), None)  # what is wrong with a value is said before an engine is built
    if mode == "--check":
        check_tools(settings)
        say(f"{settings['model']['name']} fits this image of {settings['release']}")
        return 0
    architecture, memory = gpus(settings["engine"]["world_size"])
    check_gpus(settings, found, architecture, memory)
    key = key_of(settings, found, architecture)
    scratch = [Path(folder) for folder in settings["engine_dirs"]] if mode == "serve" else [Path(arguments[1])]
    engine = find(key, [PACKAGE / "engines", *scratch])
    if engine is None:
        check_tools(settings)
        engine = build(
            settings, key, place(scratch, settings["engine"]["bytes"] + settings["engine"]["checkpoint_bytes"])
        )
    else:
        say(f"using the engine {engine}")
    if mode == "--prebuild":
        say(f"the engine for GPUs of {architecture} is {engine}")
        return 0
    models = Path(os.environ.get("TMPDIR", "/tmp")) / "modelarts-engine/repository"  # noqa: S108 - as the image's start command has set it
    repository(settings, engine, models)
    command = server(settings, models)
    say(f"running {' '.join(command)}")
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        raise Refusal(f"{command[0]} cannot be run: {error.strerror}") from error


def main() -> int:
    """The exit code."""
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    try:
        return run(sys.argv[1:])
    except Refusal as error:
        say(f"cannot start: {error}")
        return 2


if __name__ == "__main__":
    sys.exit(main())
