"""A llama package on the real Triton server behind the real runtime: engine, templates, request, exit codes."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest
from ansible_collections.modelarts.engine.plugins.module_utils import serving

from modelarts_engine import package as packages

from .conftest import Launch, Package, answer, tutorial

INFER = "/v2/models/ensemble/infer"
BACKWARDS = "what is machine learning"[::-1]


def until(done: Callable[[], Any], service: serving.Service, seconds: float = 60) -> None:
    """Waits for a condition."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, serving.last_lines(service.container, 60)
        time.sleep(0.1)


def ended(service: serving.Service, seconds: float = 60) -> int:
    """Waits for the container's end; its exit code."""
    return int(service.container.wait(timeout=seconds)["StatusCode"])


def said(service: serving.Service) -> str:
    return str(service.container.logs().decode())


def drained(service: serving.Service) -> None:
    """Stops the container in good order, without the wait for further requests: a second signal ends that."""
    service.container.kill("SIGTERM")
    until(lambda: "SIGTERM: draining" in said(service), service)
    service.container.kill("SIGTERM")
    assert ended(service) == 0


def test_the_tutorials_request_is_answered_once_the_engine_is_built_and_health_is_false_meanwhile(
    package: Package, launch: Launch
) -> None:
    service = launch(package(), environment={"HANG": "/tmp/builder"})

    def building() -> bool:
        return bool(service.container.exec_run(["test", "-s", "/tmp/builder"]).exit_code == 0 and service.ca)

    until(building, service)
    response = service.request("GET", "/health")
    assert (response.status, json.loads(response.read())) == (503, {"health": "false"})
    service.container.exec_run(["rm", "/tmp/builder"])
    service.wait(120)
    status, body = answer(service, INFER, tutorial())
    assert status == 200, body
    assert [(each["name"], each["datatype"], each["data"]) for each in body["outputs"]] == [
        ("text_output", "BYTES", [BACKWARDS])
    ]
    status, body = answer(
        service,
        "/v2/models/ensemble/generate",
        {"text_input": "abcdef", "max_tokens": 3, "bad_words": "", "stop_words": ""},
    )
    assert (status, body["text_output"]) == (200, "fed")
    status, body = answer(service, INFER, tutorial(max_tokens="INT32"))
    assert status == 400, "Triton itself tells types apart"
    status, body = answer(
        service, "/v2/models/ensemble_upstream/infer", tutorial(max_tokens="INT32", pad_id="INT32", end_id="INT32")
    )
    assert (status, body["outputs"][0]["data"]) == (200, [BACKWARDS])
    drained(service)


def test_a_number_that_does_not_fit_is_refused(package: Package, launch: Launch) -> None:
    service = launch(package())
    service.wait(120)
    request = tutorial()
    request["inputs"][3]["data"] = [2**32 - 1]
    status, body = answer(service, INFER, request)
    assert (status, "max_tokens is larger than 2147483647" in body["error"]) == (500, True)
    assert answer(service, INFER, tutorial())[0] == 200


def test_the_releases_own_types_are_served_on_request(package: Package, launch: Launch) -> None:
    service = launch(package(request_types="upstream"))
    service.wait(120)
    status, body = answer(service, INFER, tutorial(max_tokens="INT32", pad_id="INT32", end_id="INT32"))
    assert (status, body["outputs"][0]["data"]) == (200, [BACKWARDS])


def test_answers_are_streamed_piece_by_piece(package: Package, launch: Launch) -> None:
    service = launch(package(values={"decoupled_mode": True, "batching_strategy": "inflight_fused_batching"}))
    service.wait(120)
    response = service.request(
        "POST",
        "/v2/models/ensemble/generate_stream",
        {"text_input": "abcdef", "max_tokens": 4, "bad_words": "", "stop_words": "", "pad_id": 2, "end_id": 2},
    )
    assert response.status == 200
    pieces = [json.loads(line[5:])["text_output"] for line in response if line.startswith(b"data:")]
    assert pieces == ["f", "e", "d", "c"]


def test_an_engine_on_a_mounted_disk_outlives_the_container(package: Package, launch: Launch, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    disk.chmod(0o777)
    folder = package()
    mounts = [
        docker.types.Mount(serving.MODEL_PATH, str(folder), type="bind", read_only=True),
        docker.types.Mount("/home/mind/engines", str(disk), type="bind"),
    ]
    first = launch(folder, mounts=mounts)
    first.wait(120)
    assert "converted" in said(first)
    (engine,) = [path for path in disk.iterdir() if not path.name.startswith(".")]
    first.container.remove(force=True)
    second = launch(folder, mounts=mounts)
    second.wait(120)
    assert f"using the engine /home/mind/engines/{engine.name}" in said(second)
    assert "converted" not in said(second)
    assert answer(second, INFER, tutorial())[0] == 200


@pytest.mark.parametrize(
    ("given", "env", "code", "message"),
    [
        ({}, {"FAIL": "9"}, 9, "trtllm-build ended with 9"),
        ({}, {"GPUS": "", "GPUS_FAIL": "9"}, 2, "no GPU: nvidia-smi ends with 9"),
        (
            {"values": {"enable_trt_overlap": True}},
            {},
            2,
            "enable_trt_overlap: the templates of this release have no such key",
        ),
    ],
)
def test_what_cannot_start_ends_the_container_with_its_exit_code(
    package: Package, launch: Launch, given: dict[str, Any], env: dict[str, str], code: int, message: str
) -> None:
    service = launch(package(**given), environment=env)
    assert ended(service) == code
    assert message in said(service)


def test_a_server_that_dies_ends_the_container(package: Package, launch: Launch) -> None:
    service = launch(package())
    service.wait(120)
    script = "for p in /proc/[0-9]*; do case $(cat $p/comm) in tritonserver) kill -KILL ${p#/proc/};; esac; done"
    service.container.exec_run(["sh", "-c", script])
    assert ended(service) == 137


def test_a_drain_while_the_engine_is_built_ends_at_once(package: Package, launch: Launch) -> None:
    service = launch(package(), environment={"HANG": "/tmp/builder"})
    until(lambda: service.container.exec_run(["test", "-s", "/tmp/builder"]).exit_code == 0, service)
    drained(service)


def test_the_image_says_whether_a_package_fits(
    engine: docker.DockerClient, image: str, package: Package, capfd: pytest.CaptureFixture[str]
) -> None:
    what = packages.kind("llama_7b")
    assert packages.check(engine, image, what, package()) == 0
    assert "llama_7b fits this image of v0.12.0" in capfd.readouterr().err
    assert packages.check(engine, image, what, package(values={"max_kv_cache_length": 1})) == 2
    assert "there it is called max_attention_window_size" in capfd.readouterr().err


def test_a_prebuilt_engine_goes_into_the_package_and_is_served_without_a_builder(
    engine: docker.DockerClient, image: str, package: Package, launch: Launch
) -> None:
    what, folder = packages.kind("llama_7b"), package()
    assert packages.prebuild(engine, image, what, folder, gpus=False) == 0
    (built,) = (folder / "engines").iterdir()
    assert sorted(path.name for path in built.iterdir()) == ["complete.json", "config.json", "rank0.engine"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["model"]
    service = launch(folder, environment={"FAIL": "9"})
    service.wait(120)
    assert f"using the engine {serving.MODEL_PATH}/engines/{built.name}" in said(service)
    assert answer(service, INFER, tutorial())[0] == 200


def test_without_gpus_nothing_is_prebuilt(engine: docker.DockerClient, image: str, package: Package) -> None:
    from modelarts_engine import engine_client

    what, folder = packages.kind("llama_7b"), package()
    with pytest.raises(engine_client.engine.EngineError, match="gpu"):
        packages.prebuild(engine, image, what, folder)
    assert not (folder / "engines").exists()
    assert [path.name for path in folder.parent.iterdir()] == ["model"]
