"""The start script of a llama package, run as a program against tools that are as strict about their flags as upstream's."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import small_llama
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import hf_llama, trtllm, trtllm_package

ROOT = Path(__file__).resolve().parents[2]
ROLE = ROOT / "roles/trtllm_model"
IMAGE = ROOT / "tests/fixtures/trtllm_image"
OPTIONS = yaml.safe_load((ROLE / "meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
DEFAULTS = {name.removeprefix("trtllm_model_"): option.get("default") for name, option in OPTIONS.items()}
SCRIPTS = {
    str(path.relative_to(ROLE / "files")): path.read_text()
    for path in (ROLE / "files").rglob("*")
    if path.suffix in (".py", ".sh")
}
START = """\
#!/bin/sh
# Stands for the image's own start command: says how it was called, and serves for as long as the test wants.
echo "started $*" >&2
printf '%s\\n' "$*" >>"$MODELARTS_ENGINE_ROOT/started"
exit "${EXIT:-0}"
"""


@dataclass
class World:
    """An image, a package for it, and where the package runs."""

    path: Path
    values: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)

    @property
    def root(self) -> Path:
        """The image's folder of ours."""
        return self.path / "image"

    @property
    def model(self) -> Path:
        """The model folder."""
        return self.path / "package/model"

    @property
    def cache(self) -> Path:
        """Where engines are kept."""
        return self.path / "cache"

    @property
    def repository(self) -> Path:
        """The model repository that was filled."""
        return self.path / "tmp/modelarts-engine/repository"

    def make(self, release: str = "v0.12.0", **given: Any) -> World:
        """Writes the package."""
        self.path.joinpath("tmp").mkdir(exist_ok=True)
        source = self.path / "hf"
        if not source.exists():
            small_llama.make(source)
        wanted = {**DEFAULTS, "engine_dirs": [str(self.cache), str(self.path / "tmp/engines")], **given}
        package = trtllm_package.Package(
            self.model, source, hf_llama.check(source), trtllm.choose(release), wanted, SCRIPTS
        )
        package.write()
        return self

    def image(self, **versions: Any) -> World:
        """Lays out the image, which says these of itself."""
        shutil.copytree(IMAGE / "all_models", self.root / "trtllm/all_models")
        shutil.copytree(IMAGE / "examples", self.root / "trtllm/examples")
        shutil.copytree(IMAGE / "tools", self.path / "tools")
        said = {**json.loads((IMAGE / "versions.json").read_text()), **versions}
        (self.root / "trtllm/versions.json").write_text(json.dumps(said))
        (self.root / "bin").mkdir()
        (self.root / "bin/start").write_text(START)
        (self.root / "bin/start").chmod(0o755)
        return self

    def command(self, *arguments: str) -> dict[str, Any]:
        """How the start script is run."""
        env = {
            "PATH": f"{self.path}/tools:{os.environ['PATH']}",
            "HOME": str(self.path),
            "TMPDIR": str(self.path / "tmp"),
            "MODELARTS_ENGINE_ROOT": str(self.root),
        }
        return {"args": ["sh", str(self.model / "triton_serving.sh"), *arguments], "env": {**env, **self.env}}

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs it to its end."""
        return subprocess.run(
            **self.command(*arguments),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=60,
        )

    def engines(self, folder: Path | None = None) -> list[str]:
        """What is in the engines' folder, locks aside."""
        return sorted(path.name for path in (folder or self.cache).glob("*") if not path.name.endswith(".lock"))


@pytest.fixture
def world(tmp_path: Path) -> World:
    """The listed v0.12.0 in small, and a package for it."""
    return World(tmp_path).image().make()


def test_the_engine_is_built_the_templates_filled_and_the_server_started(world: World) -> None:
    done = world.run()
    assert done.returncode == 0, done.stdout
    (key,) = world.engines()
    built = json.loads((world.cache / key / "config.json").read_text())["pretrained_config"]
    assert (built["dtype"], built["quantization"]) == ("float16", "W8A16")
    config = (world.repository / "tensorrt_llm/config.pbtxt").read_text()
    assert f'string_value: "{world.cache / key}"' in config
    assert 'backend: "tensorrtllm"' in config
    assert f'"{world.model}/llama_7b"' in (world.repository / "preprocessing/config.pbtxt").read_text()
    assert sorted(path.name for path in world.repository.iterdir()) == [
        "ensemble", "ensemble_upstream", "postprocessing", "preprocessing", "tensorrt_llm",
    ]  # fmt: skip
    assert all((model / "1").is_dir() for model in world.repository.iterdir())
    assert (world.root / "started").read_text() == (f"{world.repository} --disable-auto-complete-config\n")
    assert not [path for path in world.model.rglob("*") if path.name == "__pycache__"]


def test_an_engine_that_is_there_is_used_again(world: World) -> None:
    assert "converted" in world.run().stdout
    before = {path: path.stat().st_mtime_ns for path in world.cache.rglob("*.engine")}
    again = world.run()
    assert again.returncode == 0
    assert "using the engine" in again.stdout
    assert "converted" not in again.stdout
    assert {path: path.stat().st_mtime_ns for path in world.cache.rglob("*.engine")} == before


@pytest.mark.parametrize("what", ["model", "release", "tensorrt", "architecture", "flags"])
def test_a_new_key_means_a_new_engine(world: World, what: str) -> None:
    world.run()
    if what == "model":
        (world.path / "hf/tokenizer.model").write_bytes(b"\nanother")
        world.make()
    elif what == "release":
        commit = trtllm.choose("v0.15.0")["commit"]
        shutil.rmtree(world.root)
        shutil.rmtree(world.path / "tools")
        world.image(release="v0.15.0", commit=commit).make("v0.15.0")
        build = world.path / "tools/trtllm-build"
        build.write_text(
            build.read_text()
            .replace('"paged_kv_cache", ', "")
            .replace(
                "given = parser",
                'parser.add_argument("--kv_cache_type", choices=["paged", "continuous"])\ngiven = parser',
            )
        )
    elif what == "tensorrt":
        (world.root / "trtllm/versions.json").write_text(
            (world.root / "trtllm/versions.json").read_text().replace("10.3.0.26", "10.3.0.27")
        )
    elif what == "architecture":
        world.env["GPUS"] = "NVIDIA A10, 8.6, 24576\\n"
    else:
        world.make(max_input_len=1024)
    done = world.run()
    assert done.returncode == 0, done.stdout
    assert len(world.engines()) == 2


@pytest.mark.parametrize("given", [{"values": {"kv_cache_free_gpu_mem_fraction": 0.9}}, {"bls": True}])
def test_what_does_not_change_the_engine_does_not_build_it_again(world: World, given: dict[str, Any]) -> None:
    world.run()
    done = world.make(**given).run()
    assert "using the engine" in done.stdout
    assert (world.repository / "tensorrt_llm_bls").exists() == ("bls" in given)


@pytest.mark.parametrize("harm", ["cut", "lost", "unfinished"])
def test_an_engine_that_is_not_whole_is_built_again(world: World, harm: str) -> None:
    world.run()
    (key,) = world.engines()
    if harm == "cut":
        os.truncate(world.cache / key / "rank0.engine", 1)
    else:
        (world.cache / key / {"lost": "rank0.engine", "unfinished": "complete.json"}[harm]).unlink()
    done = world.run()
    assert "is not whole and is not used" in done.stdout
    assert done.returncode == 0
    assert (world.cache / key / "rank0.engine").read_bytes() == b"engine"


def test_an_engine_that_the_package_brings_comes_first(world: World) -> None:
    done = world.run("--prebuild", str(world.path / "out"))
    assert done.returncode == 0, done.stdout
    assert not (world.root / "started").exists()
    (key,) = world.engines(world.path / "out")
    shutil.copytree(world.path / "out", world.model / "engines")
    done = world.run()
    assert f"using the engine {world.model}/engines/{key}" in done.stdout
    assert not world.cache.exists()


def test_early_releases_build_with_their_one_tool(tmp_path: Path) -> None:
    row = trtllm.choose("v0.7.2")
    world = (
        World(tmp_path)
        .image(release="v0.7.2", commit=row["commit"])
        .make("v0.7.2", values={"batching_strategy": "inflight_fused_batching"})
    )
    # The templates of this test are of a later form, which does not matter here.
    done = world.run()
    assert done.returncode == 0, done.stdout
    (key,) = world.engines()
    flags = json.loads((world.cache / key / "config.json").read_text())
    assert flags["use_inflight_batching"] == flags["paged_kv_cache"] == flags["use_weight_only"] == "True"
    assert (flags["max_input_len"], flags["max_output_len"]) == ("2048", "512")
    assert (world.cache / key / "llama_float16_tp1_rank0.engine").exists()


def test_several_gpus_are_served_under_mpirun(tmp_path: Path) -> None:
    world = World(tmp_path).image().make(tensor_parallel=2)
    world.env["GPUS"] = "A100, 8.0, 81920\\nA100, 8.0, 81920\\n"
    done = world.run()
    assert done.returncode == 0, done.stdout
    first, second = sorted((world.root / "started").read_text().splitlines(), key=len)
    start = f"{world.repository} --disable-auto-complete-config"
    assert first == f"{start} --backend-config=python,shm-region-prefix-name=prefix0_"
    assert second == (
        f"{start} --model-control-mode=explicit --load-model=tensorrt_llm "
        "--backend-config=python,shm-region-prefix-name=prefix1_"
    )
    (key,) = world.engines()
    assert (world.cache / key / "rank1.engine").exists()


@pytest.mark.parametrize("parallel", [1, 2])
def test_the_servers_exit_code_is_passed_on(tmp_path: Path, parallel: int) -> None:
    world = World(tmp_path).image().make(tensor_parallel=parallel)
    world.env |= {"EXIT": "42", "GPUS": "A100, 8.0, 81920\\nA100, 8.0, 81920\\n"}
    assert world.run().returncode == 42


def test_the_builders_exit_code_is_passed_on_and_nothing_is_left(world: World) -> None:
    world.env["FAIL"] = "9"
    done = world.run()
    assert done.returncode == 9
    assert "trtllm-build ended with 9; what it said is above" in done.stdout
    assert world.engines() == []
    assert not (world.root / "started").exists()


@pytest.mark.parametrize("lacks", ["engine", "config.json"])
def test_a_builder_that_does_not_write_everything_has_failed(world: World, lacks: str) -> None:
    world.env["LACKS"] = lacks
    done = world.run()
    assert done.returncode == 2
    assert f"ended without an error and wrote no {lacks}" in done.stdout
    assert world.engines() == []


@pytest.fixture
def hanging(world: World) -> Iterator[tuple[World, subprocess.Popen[str]]]:
    """A start script whose builder goes on for ever."""
    world.env["HANG"] = str(world.path / "builder")
    child = subprocess.Popen(**world.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 30
    while not (world.path / "builder").exists() or not (world.path / "builder").read_text():
        assert time.monotonic() < deadline
        assert child.poll() is None
        time.sleep(0.01)
    try:
        yield world, child
    finally:
        child.kill()
        (world.path / "builder").unlink(missing_ok=True)  # ends a builder that outlived it
        child.communicate()


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_signal_ends_the_builder_too_and_leaves_nothing(hanging: tuple[World, subprocess.Popen[str]]) -> None:
    world, child = hanging
    builder = int((world.path / "builder").read_text())
    child.send_signal(signal.SIGTERM)
    child.communicate(timeout=20)
    assert child.returncode == 128 + signal.SIGTERM
    assert not alive(builder)
    assert world.engines() == []


def test_a_killed_builder_is_told(hanging: tuple[World, subprocess.Popen[str]]) -> None:
    world, child = hanging
    os.kill(int((world.path / "builder").read_text()), signal.SIGKILL)
    said, _ = child.communicate(timeout=20)
    assert child.returncode == 128 + signal.SIGKILL
    assert "trtllm-build was killed by SIGKILL; the host's or the container's memory may be too small" in said


def test_after_a_kill_the_next_start_builds_anew(hanging: tuple[World, subprocess.Popen[str]]) -> None:
    world, child = hanging
    builder = int((world.path / "builder").read_text())
    child.kill()
    child.wait()
    os.kill(builder, signal.SIGKILL)
    assert [name for name in world.engines() if name.endswith(".partial")] != []
    del world.env["HANG"]
    assert world.run().returncode == 0
    assert [name for name in world.engines() if name.endswith(".partial")] == []
    assert len(world.engines()) == 1


def test_two_that_share_a_disk_build_once(hanging: tuple[World, subprocess.Popen[str]]) -> None:
    world, child = hanging
    builder = int((world.path / "builder").read_text())
    del world.env["HANG"]
    second = subprocess.Popen(**world.command(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert second.stdout is not None
    said = ""
    while "waiting for it" not in said:
        line = second.stdout.readline()
        assert line, said
        said += line
    assert "converted" not in said
    os.kill(builder, signal.SIGKILL)
    child.wait()
    rest, _ = second.communicate(timeout=30)
    assert second.returncode == 0, rest
    assert len(world.engines()) == 1


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"GPUS": "", "GPUS_FAIL": "9"}, "no GPU: nvidia-smi ends with 9"),
        ({"GPUS": ""}, "the model is spread over 1 GPUs, the container has 0"),
        (
            {"GPUS": "NVIDIA H100, 9.0, 81920\\n"},
            "was compiled for the CUDA architectures 80-real, 86-real, this GPU has 90",
        ),
        ({"GPUS": "No devices were found\\n"}, "nvidia-smi answers what is not understood"),
        ({"GPUS": "NVIDIA T1, 8.0, 0\\n"}, "each GPU has 0 MB, the weights alone need"),
    ],
)
def test_gpus_that_do_not_fit_are_refused_before_anything_is_built(
    world: World, env: dict[str, str], message: str
) -> None:
    world.env |= env
    done = world.run()
    assert done.returncode == 2
    assert message in done.stdout
    assert not world.cache.exists()


def test_gpus_of_two_kinds_are_refused(tmp_path: Path) -> None:
    world = World(tmp_path).image().make(tensor_parallel=2)
    world.env["GPUS"] = "A100, 8.0, 81920\\nA10, 8.6, 24576\\n"
    assert "the GPUs are of different architectures: A100 8.0, A10 8.6" in world.run().stdout


def test_a_backend_compiled_for_later_gpus_too_is_taken(tmp_path: Path) -> None:
    world = World(tmp_path).image(cuda_architectures=["80-virtual"]).make()
    world.env["GPUS"] = "NVIDIA H100, 9.0, 81920\\n"
    assert world.run().returncode == 0


def test_without_nvidia_smi_there_is_no_gpu(world: World) -> None:
    (world.path / "tools/nvidia-smi").unlink()
    assert "no GPU: nvidia-smi cannot be run" in world.run().stdout


@pytest.mark.parametrize(
    ("versions", "message"),
    [
        ({"release": "v0.15.0"}, "was made for release v0.12.0 of the TensorRT-LLM backend, the image has v0.15.0"),
        ({"commit": "0" * 40}, "was made for commit 9a78477873574098c32467f0fd8a9d3b4c243d9b"),
    ],
)
def test_a_package_of_another_release_is_refused(tmp_path: Path, versions: dict[str, str], message: str) -> None:
    done = World(tmp_path).image(**versions).make().run()
    assert done.returncode == 2
    assert message in done.stdout


@pytest.mark.parametrize("mode", [[], ["--check"]])
def test_a_package_that_did_not_arrive_whole_is_refused(world: World, mode: list[str]) -> None:
    shard = world.model / "llama_7b/model-00002-of-00002.safetensors"
    size = shard.stat().st_size
    os.truncate(shard, 100)
    (world.model / "llama_7b/tokenizer.model").unlink()
    done = world.run(*mode)
    assert done.returncode == 2
    assert f"{shard} has 100 bytes of {size}" in done.stdout
    assert f"{world.model}/llama_7b/tokenizer.model: No such file" in done.stdout


@pytest.mark.parametrize("mode", [[], ["--check"], ["--prebuild", "/nowhere"]])
@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"max_kv_cache_length": 1}, "there it is called max_attention_window_size"),
        ({"decoupled_mode": "maybe"}, "decoupled_mode cannot be 'maybe'; it takes true or false"),
        ({"bls_instance_count": 2}, "it belongs to the model tensorrt_llm_bls, which this package leaves out"),
    ],
)
def test_wrong_values_are_refused_before_anything_is_built(
    tmp_path: Path, mode: list[str], values: dict[str, Any], message: str
) -> None:
    world = World(tmp_path).image().make(values=values)
    done = world.run(*mode)
    assert done.returncode == 2
    assert "the templates of v0.12.0 cannot be filled" in done.stdout
    assert message in done.stdout
    assert not world.cache.exists()


def test_a_check_needs_no_gpu_and_writes_nothing(world: World) -> None:
    (world.path / "tools/nvidia-smi").unlink()
    done = world.run("--check")
    assert (done.returncode, done.stdout) == (0, "triton_serving: llama_7b fits this image of v0.12.0\n")
    assert not world.cache.exists()
    assert list((world.path / "tmp").iterdir()) == []


@pytest.mark.parametrize("tool", ["image/trtllm/examples/llama/convert_checkpoint.py", "tools/trtllm-build"])
def test_an_image_without_its_tools_is_refused_by_the_check(world: World, tool: str) -> None:
    (world.path / tool).unlink()
    done = world.run("--check")
    assert done.returncode == 2
    assert (
        f"the image has no {tool.rpartition('/')[2] if tool.startswith('tools') else world.path / tool}" in done.stdout
    )


def test_without_room_nothing_is_built(world: World) -> None:
    settings = json.loads((world.model / "serving/settings.json").read_text())
    settings["engine"]["checkpoint_bytes"] = 10**15
    (world.model / "serving/settings.json").write_text(json.dumps(settings))
    done = world.run()
    assert done.returncode == 2
    assert f"no room for the engine, which needs 1000000.00 GB while it is built ({world.cache}: " in done.stdout
    assert "--prebuild" in done.stdout


def test_a_folder_that_cannot_be_written_to_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    world = World(tmp_path).image().make(engine_dirs=[str(tmp_path / "file/engines"), str(tmp_path / "second")])
    assert world.run().returncode == 0
    assert len(world.engines(tmp_path / "second")) == 1


def test_the_releases_own_types_are_left_alone_on_request(tmp_path: Path) -> None:
    world = World(tmp_path).image().make(request_types="upstream")
    assert world.run().returncode == 0
    assert "TYPE_INT32" in (world.repository / "ensemble/config.pbtxt").read_text()
    assert not (world.repository / "ensemble_upstream").exists()


@pytest.mark.parametrize("arguments", [["--help"], ["--prebuild"], ["--check", "x"]])
def test_wrong_arguments_are_refused(world: World, arguments: list[str]) -> None:
    done = world.run(*arguments)
    assert done.returncode == 2
    assert "it takes nothing, --check, or --prebuild DIR" in done.stdout


def typed(config: str) -> dict[str, str]:
    """Types of the inputs and outputs of a configuration."""
    return dict(re.findall(r'name: "(\w+)"\s+data_type: (\w+)', config))


@pytest.mark.parametrize(("batch", "processes"), [(1, 1), (4, 4), (64, 8)])
def test_the_tutorials_types_are_cast_before_the_releases_own_ensemble(
    tmp_path: Path, batch: int, processes: int
) -> None:
    values = {"decoupled_mode": True, "batching_strategy": "inflight_fused_batching"}
    world = World(tmp_path).image().make(max_batch_size=batch, values=values)
    assert world.run().returncode == 0
    ours = (world.repository / "ensemble/config.pbtxt").read_text()
    theirs = (world.repository / "ensemble_upstream/config.pbtxt").read_text()
    template = (world.root / "trtllm/all_models/inflight_batcher_llm/ensemble/config.pbtxt").read_text()
    assert theirs == template.replace('name: "ensemble"', 'name: "ensemble_upstream"', 1).replace(
        "${triton_max_batch_size}", str(batch)
    )
    numbers = dict.fromkeys(("max_tokens", "end_id", "pad_id"), "TYPE_UINT32")
    assert typed(ours) == {**typed(theirs), **numbers}
    assert {typed(theirs)[name] for name in numbers} == {"TYPE_INT32"}
    for line in (
        'backend: "python"',
        f"max_batch_size: {batch}",
        "model_transaction_policy { decoupled: true }",
        f"instance_group [ {{ count: {processes} kind: KIND_CPU }} ]",
    ):
        assert line in ours.splitlines()
    assert (world.repository / "ensemble/1/model.py").read_text() == SCRIPTS["serving/ensemble.py"]


def test_an_ensemble_that_takes_the_tutorials_types_is_left_alone(tmp_path: Path) -> None:
    world = World(tmp_path).image().make()
    template = world.root / "trtllm/all_models/inflight_batcher_llm/ensemble/config.pbtxt"
    template.write_text(template.read_text().replace("INT32", "UINT32"))
    assert world.run().returncode == 0
    assert not (world.repository / "ensemble_upstream").exists()
    assert 'platform: "ensemble"' in (world.repository / "ensemble/config.pbtxt").read_text()
