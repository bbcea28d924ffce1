# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What a llama package for the TensorRT-LLM backend consists of: engine recipe, settings, and the folder. Standard library only."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama

MANIFEST = ".package"
BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "int8": 8, "int4": 4}
SPARE = 64 << 20


class PackageError(Exception):
    """The package cannot be made; the message says everything that is wrong, where, and what to do."""


def gb(count: float) -> str:
    """Bytes as people say them, decimal."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def version(release: str) -> tuple[int, ...]:
    """A release's numbers."""
    return tuple(map(int, re.findall(r"\d+", release)))


def inflight(release: str, values: Mapping[str, Any]) -> bool:
    """Whether requests join a running batch. The templates of v0.5.0 have no other way."""
    return version(release) < (0, 6, 0) or str(values.get("batching_strategy", "V1")).startswith("inflight")


def steps(release: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[list[str]]:
    """The command lines that build an engine, of a release's own tools; `{model}` and the like are put in where they run.

    Flags as upstream's documentation and CI of each release have them.

    :param release: a row of `meta/trtllm_releases.yml`, with its tag as `release`.
    :param arguments: the role's arguments without their prefix.
    """
    dtype, world_size = arguments["dtype"], arguments["tensor_parallel"]
    weight_only = arguments["weight_only"]
    quantized = [] if weight_only == "none" else ["--use_weight_only", "--weight_only_precision", weight_only]
    lengths = {
        "max_batch_size": arguments["max_batch_size"],
        "max_input_len": arguments["max_input_len"],
        "max_beam_width": arguments["max_beam_width"],
    }
    together = arguments["max_input_len"] + arguments["max_output_len"]
    longest = release["engine_build"]["max_output_len"]
    lengths |= {"max_output_len": arguments["max_output_len"]} if longest else {"max_seq_len": together}
    sizes = [word for name, value in lengths.items() for word in (f"--{name}", str(value))]
    if release["engine_build"]["tool"] == "build":
        flags = {
            "--remove_input_padding": arguments["remove_input_padding"],
            "--enable_context_fmha": arguments["context_fmha"],
            "--paged_kv_cache": arguments["paged_kv_cache"],
            "--use_inflight_batching": inflight(release["release"], arguments["values"]),
        }
        plugins = {
            "--use_gpt_attention_plugin": arguments["gpt_attention_plugin"],
            "--use_gemm_plugin": arguments["gemm_plugin"],
        }
        spread = ["--world_size", str(world_size), "--tp_size", str(world_size)] if world_size > 1 else []
        return [
            [
                "{python}", "{tools}/build.py", "--model_dir", "{model}", "--output_dir", "{engine}", "--dtype", dtype,
                *(word for name, on in plugins.items() if on for word in (name, dtype)),
                *(name for name, on in flags.items() if on), *quantized, *sizes, *spread,
            ]
        ]  # fmt: skip

    def switch(on: bool) -> str:
        return "enable" if on else "disable"

    paged = arguments["paged_kv_cache"]
    cache = (
        ["--kv_cache_type", "paged" if paged else "continuous"]
        if version(release["release"]) >= (0, 15, 0)
        else ["--paged_kv_cache", switch(paged)]
    )
    reuse = any(
        str(arguments["values"].get(name)).lower() == "true"
        for name in ("enable_kv_cache_reuse", "enable_chunked_context")
    )
    spread = ["--tp_size", str(world_size)] if world_size > 1 else []
    return [
        [
            "{python}", "{tools}/convert_checkpoint.py", "--model_dir", "{model}", "--output_dir", "{checkpoint}", "--dtype", dtype,
            *quantized, *spread,
        ],
        [
            "trtllm-build", "--checkpoint_dir", "{checkpoint}", "--output_dir", "{engine}",
            "--remove_input_padding", switch(arguments["remove_input_padding"]), "--context_fmha", switch(arguments["context_fmha"]),
            "--gpt_attention_plugin", dtype if arguments["gpt_attention_plugin"] else "disable",
            "--gemm_plugin", dtype if arguments["gemm_plugin"] else "disable",
            *cache, *(["--use_paged_context_fmha", "enable"] if reuse else []), *sizes,
            *(["--workers", str(world_size)] if world_size > 1 else []),
        ],
    ]  # fmt: skip


def problems(model: hf_llama.Model, release: Mapping[str, Any], arguments: Mapping[str, Any]) -> list[str]:
    """What of the user's values does not fit the model, the release or each other."""
    config, values = model.config, arguments["values"]
    found = []
    parallel = arguments["tensor_parallel"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    if heads % parallel or config["intermediate_size"] % parallel or (kv_heads % parallel and parallel % kv_heads):
        found.append(
            f"trtllm_model_tensor_parallel: {heads} attention heads ({kv_heads} for keys and values) cannot be spread over {parallel} GPUs"
        )
    together = arguments["max_input_len"] + arguments["max_output_len"]
    if together > config["max_position_embeddings"] and not config.get("rope_scaling"):
        found.append(
            f"trtllm_model_max_input_len, trtllm_model_max_output_len: {together} tokens together; "
            f"the model knows {config['max_position_embeddings']} positions"
        )
    paged = values.get("max_tokens_in_paged_kv_cache", 2560)
    if str(paged).isdigit() and int(paged) < together:
        found.append(
            f"max_tokens_in_paged_kv_cache: {paged} tokens do not hold one request of {together} "
            "(trtllm_model_max_input_len and trtllm_model_max_output_len); raise it in trtllm_model_values"
        )
    streamed = str(values.get("decoupled_mode")).lower() == "true"
    joins = inflight(release["release"], values)
    if streamed and not joins:
        found.append(
            "decoupled_mode: only in-flight batching streams; give batching_strategy inflight_fused_batching too"
        )
    if joins and not (
        arguments["paged_kv_cache"] and arguments["remove_input_padding"] and arguments["gpt_attention_plugin"]
    ):
        found.append(
            "batching_strategy: in-flight batching needs trtllm_model_paged_kv_cache, trtllm_model_remove_input_padding and "
            "trtllm_model_gpt_attention_plugin"
        )
    if str(values.get("enable_kv_cache_reuse")).lower() == "true" and not arguments["paged_kv_cache"]:
        found.append("enable_kv_cache_reuse: only a paged KV cache is reused; leave trtllm_model_paged_kv_cache on")
    if (
        version(release["release"]) < (0, 9, 0)
        and values.get("tokenizer_type", "llama") == "llama"
        and "tokenizer.model" not in model.files
    ):
        found.append(
            f"tokenizer_type: llama of {release['release']} reads tokenizer.model, which the folder does not have; "
            "fetch it, or give tokenizer_type auto"
        )
    scaling = config.get("rope_scaling") or {}
    kind = scaling.get("rope_type") or scaling.get("type")
    if kind not in (None, "default", "linear", "dynamic") and version(release["release"]) < (0, 12, 0):
        found.append(f"config.json: rope_scaling {kind} is not known to {release['release']}; take v0.12.0 or later")
    return found


def engine_bytes(model: hf_llama.Model, arguments: Mapping[str, Any]) -> int:
    """An engine's size, estimated from above: the weights in their precision, and a tenth."""
    bits = BITS[arguments["dtype"] if arguments["weight_only"] == "none" else arguments["weight_only"]]
    embeddings = 2 * model.config["vocab_size"] * model.config["hidden_size"]  # these stay in the data type
    linear = max(0, model.parameters - embeddings)
    return (linear * bits + min(embeddings, model.parameters) * BITS[arguments["dtype"]]) * 11 // 80


def settings(
    model: hf_llama.Model,
    digest: str,
    sizes: Mapping[str, int],
    release: Mapping[str, Any],
    arguments: Mapping[str, Any],
) -> dict[str, Any]:
    """What the start script reads.

    :param digest: of the model's content.
    :param sizes: bytes of each of the model's files.
    """
    built = steps(release, arguments)
    size = engine_bytes(model, arguments)
    return {
        "release": release["release"],
        "commit": release["commit"],
        "model": {"name": arguments["name"], "digest": digest, "files": dict(sizes)},
        "engine": {
            "folder": release["engine_build"]["folder"],
            "world_size": arguments["tensor_parallel"],
            "steps": built,
            "bytes": size,
            "checkpoint_bytes": size if len(built) > 1 else 0,
        },
        "engine_dirs": list(arguments["engine_dirs"]),
        "fixed": {"triton_max_batch_size": arguments["max_batch_size"], "max_beam_width": arguments["max_beam_width"]},
        "values": dict(arguments["values"]),
        "leave_out": [] if arguments["bls"] else ["tensorrt_llm_bls"],
        "request_types": arguments["request_types"],
    }


def sha256(path: Path) -> str:
    """Of a file, 64 hex digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 22), b""):
            found.update(block)
    return found.hexdigest()


def _stamp(source: Path, files: Sequence[str]) -> dict[str, list[int]]:
    """Size and time of each of the source's files: what did not change is not read again."""
    stats = {name: (source / name).stat() for name in files}
    return {name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _read_manifest(dest: Path) -> dict[str, Any]:
    try:
        found = json.loads((dest / MANIFEST).read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class Package:
    """A package's folder.

    :param dest: the folder `model`.
    :param source: the Hugging Face folder.
    :param scripts: text of each file of ours by its path in the package.
    """

    def __init__(
        self,
        dest: Path,
        source: Path,
        model: hf_llama.Model,
        release: Mapping[str, Any],
        arguments: Mapping[str, Any],
        scripts: Mapping[str, str],
    ) -> None:
        self.dest, self.source, self.model, self.release, self.arguments, self.scripts = (
            dest, source, model, release, arguments, scripts,
        )  # fmt: skip
        self.stamp = _stamp(source, model.files)
        self.bytes = sum(size for size, _ in self.stamp.values()) + sum(
            path.stat().st_size for path in (dest / "engines").rglob("*") if path.is_file()
        )
        self.inputs = hashlib.sha256(
            _canonical([self.stamp, str(source), release, arguments, scripts]).encode()
        ).hexdigest()

    def current(self) -> bool:
        """Whether the folder is what would be written: made of the same, and every file of it has its size and ours their content.

        :raises PackageError: somebody else's folder is there.
        """
        if not self.dest.exists() and not self.dest.is_symlink():
            return False
        found = _read_manifest(self.dest) if self.dest.is_dir() and not self.dest.is_symlink() else {}
        if not found.get("files"):
            if self.dest.is_dir() and not self.dest.is_symlink() and not any(self.dest.iterdir()):
                return False
            raise PackageError(
                f"{self.dest} exists and was not written by this role; move it away, or give another trtllm_model_dest"
            )
        there = {
            str(path.relative_to(self.dest)): path.stat().st_size
            for path in self.dest.rglob("*")
            if path.is_file() and path.name != MANIFEST and path.relative_to(self.dest).parts[0] != "engines"
        }
        same = found.get("inputs") == self.inputs and there == found["files"]
        return same and all((self.dest / name).read_text() == text for name, text in self.scripts.items())

    def write(self) -> None:
        """Writes the folder beside its place and renames it; it is there whole or not at all, whenever this is broken off.

        Engines that were built into the folder stay, for the start script takes only one whose key is right.

        :raises PackageError: there is no room.
        """
        parent = self.dest.parent
        parent.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(parent).free
        needed = sum(size for size, _ in self.stamp.values())
        if not self.arguments["link"] and free < needed + SPARE:
            raise PackageError(
                f"{parent} has {gb(free)} free, the copy of {self.source} needs {gb(needed)}; free some, give another "
                "trtllm_model_dest, or trtllm_model_link=true where both are on one file system"
            )
        self._sweep(parent)
        scratch = Path(tempfile.mkdtemp(prefix=f".model.{os.getpid()}.", suffix=".partial", dir=parent))
        try:
            made = scratch / "model"
            folder = made / self.arguments["name"]
            folder.mkdir(parents=True)
            digests = {}
            for name in self.model.files:
                self._bring(self.source / name, folder / name)
                digests[name] = sha256(folder / name)
            if _stamp(self.source, self.model.files) != self.stamp:
                raise PackageError(
                    f"{self.source} was changed while it was copied; run this again when nobody writes to it"
                )
            digest = hashlib.sha256(_canonical(digests).encode()).hexdigest()
            sizes = {name: (folder / name).stat().st_size for name in self.model.files}
            said = settings(self.model, digest, sizes, self.release, self.arguments)
            texts = {**self.scripts, "serving/settings.json": json.dumps(said, indent=1, sort_keys=True) + "\n"}
            for name, text in texts.items():
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                (made / name).write_text(text)
            (made / "triton_serving.sh").chmod(0o755)
            files = {str(path.relative_to(made)): path.stat().st_size for path in made.rglob("*") if path.is_file()}
            (made / MANIFEST).write_text(_canonical({"inputs": self.inputs, "files": files, "sha256": digests}) + "\n")
            self._open(made)
            if (self.dest / "engines").is_dir():
                (self.dest / "engines").rename(made / "engines")
            if self.dest.exists():
                self.dest.rename(scratch / "old")
            made.rename(self.dest)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _bring(self, source: Path, dest: Path) -> None:
        """A copy, or another name of the same file where that was asked for and whoever serves may read it."""
        real = source.resolve()
        if self.arguments["link"] and real.stat().st_mode & 0o444 == 0o444:
            with contextlib.suppress(OSError):
                os.link(real, dest)
                return
        shutil.copyfile(real, dest)

    @staticmethod
    def _open(made: Path) -> None:
        """The platform gives the folder to its user online and leaves it to root locally: everybody may read."""
        for path in [made, *made.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
            elif path.stat().st_mode & 0o444 != 0o444:
                path.chmod(0o644)

    @staticmethod
    def _sweep(parent: Path) -> None:
        """Removes what killed runs left."""
        for path in parent.glob(".model.*.partial"):
            owner = path.name.split(".")[2]
            if owner.isdigit() and not Path(f"/proc/{owner}").exists():
                shutil.rmtree(path, ignore_errors=True)


def check_size(package: Package, limit: int, image: int) -> None:
    """Refuses a package that the pool does not take together with its image.

    :param limit: bytes, 0 for none.
    :param image: bytes of the image, 0 where they are not known.
    """
    if limit and package.bytes + image > limit:
        with_image = f" and the image {gb(image)}" if image else ""
        raise PackageError(
            f"too big for the pool: the package has {gb(package.bytes)}{with_image}, a public resource pool takes {gb(limit)} together. "
            "Use a smaller model, or a dedicated pool (trtllm_model_pool_limit_gb)"
        )
