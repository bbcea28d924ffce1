"""The local model, served by the real Triton in a container as the platform would run it."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from .conftest import BYTES, FP32, UINT32, UINT64, Launch, Server, tensor, tutorial

LONG = "Write a very long story about a dragon, with many chapters."


@pytest.fixture(scope="module")
def plain(server: Server) -> str:
    """The answer to the tutorial's request."""
    return server.infer().output


# What is asked for is done.


def test_the_tutorial_s_request_is_answered(server: Server, plain: str) -> None:
    assert "learn" in plain
    assert len(plain.split()) > 20
    assert "what is machine learning" not in plain
    assert server.infer().output == plain, "without a temperature the answer is always the same"


def test_max_tokens_is_respected(server: Server, plain: str) -> None:
    """Each token of this answer is a piece of the stream."""
    for tokens in (1, 2, 9):
        streamed = server.stream(tokens=tokens)
        assert len(streamed.events) == tokens
        assert streamed.output == server.infer(tokens=tokens).output
        assert plain.startswith(streamed.output)


@pytest.mark.parametrize(
    "form",
    [
        lambda word: word,
        lambda word: f"never said,{word}",
        lambda word: ["never said", word],
        lambda word: ["", f'"{word}"'],
    ],
    ids=["word", "commas", "elements", "quoted"],
)
def test_generation_stops_before_a_stop_word(server: Server, plain: str, form: Any) -> None:
    """The word begins and ends within tokens."""
    at = plain.index(" ", 20) - 2
    word = plain[at : at + 5]
    assert server.infer(stop=form(word)).output == plain[: plain.index(word)]


def test_a_stream_does_not_show_the_beginning_of_a_stop_word(server: Server, plain: str) -> None:
    at = plain.index(" ", 20) - 2
    word = plain[at : at + 12]
    assert server.stream(stop_words=word).output == plain[: plain.index(word)]


def test_empty_words_are_none(server: Server, plain: str) -> None:
    assert server.infer(stop=["", ""], bad=[","]).output == plain


def test_bad_words_never_appear(server: Server, plain: str) -> None:
    """Neither whole words nor pieces that no token begins or ends with."""
    first, second = plain.split()[0][1:5], plain.split()[4]
    for form in (f"{first},{second}", [first, second], ["", f'"{first}"', second]):
        answer = server.infer(bad=form).output
        assert len(answer.split()) > 20
        assert first not in answer
        assert second not in answer
    assert second not in server.stream(bad_words=second).output


def test_bad_words_take_nothing_else(server: Server, plain: str) -> None:
    """A ban of the word's tokens would take them from other words too."""
    assert server.infer(bad="zzzz").output == plain
    words = plain.split()
    apart = f" {words[2]} {words[5]}"
    assert apart not in plain
    assert server.infer(bad=apart).output == plain


def test_a_stream_comes_piece_by_piece(server: Server) -> None:
    answer = server.stream(LONG, 100)
    times = [seconds for seconds, _ in answer.events]
    assert len(times) > 30
    assert times[0] < times[-1] / 2, "the first piece came when the answer was complete"
    apart = [after - before for before, after in itertools.pairwise(times)]
    assert sum(gap > 0.001 for gap in apart) > len(apart) / 2, "pieces came in bursts"


def test_randomness_can_be_had_and_repeated(server: Server, plain: str) -> None:
    def ask(seed: int) -> str:
        request = tutorial(tokens=32)
        request["inputs"] += [
            tensor("temperature", FP32, 1.5),
            tensor("random_seed", UINT64, seed),
            tensor("top_p", FP32, 0.99),
        ]
        return server.infer(request).output

    assert ask(1) == ask(1)
    assert len({ask(1), ask(2), ask(3)}) > 1


def test_clients_may_leave_out_what_is_optional(server: Server, plain: str) -> None:
    request = {"inputs": tutorial()["inputs"][:2]}
    assert server.infer(request).output == plain


def test_many_requests_at_once_are_all_answered(server: Server) -> None:
    with ThreadPoolExecutor(8) as pool:
        texts = [
            answer.output
            for answer in pool.map(lambda n: server.infer(text=f"What is {n} plus one?", tokens=8), range(8))
        ]
        streams = [answer.output for answer in pool.map(lambda n: server.stream(f"What is {n} plus one?", 8), range(8))]
    assert all(texts)
    assert all(streams)


def test_nearly_all_shared_memory_is_left(server: Server) -> None:
    assert int(server.run("df -Pk /dev/shm | tail -n 1").split()[2]) < 8 * 1024


# What cannot be done is refused.


def without(name: str) -> dict[str, Any]:
    request = tutorial()
    request["inputs"] = [entry for entry in request["inputs"] if entry["name"] != name]
    return request


def replaced(entry: dict[str, Any]) -> dict[str, Any]:
    request = without(entry["name"])
    request["inputs"].append(entry)
    return request


REFUSED = {
    "no text": (without("text_input"), "text_input is missing"),
    "no max_tokens": (without("max_tokens"), "max_tokens is missing"),
    "empty text": (replaced(tensor("text_input", BYTES, " \n")), "text_input is missing or empty"),
    "no tokens": (replaced(tensor("max_tokens", UINT32, 0)), "max_tokens is 0, must be from 1 to 2048"),
    "negative tokens": (replaced(tensor("max_tokens", UINT32, -1)), "unsigned"),
    "more tokens than the context has": (replaced(tensor("max_tokens", UINT32, 2049)), "must be from 1 to 2048"),
    "tokens in words": (replaced(tensor("max_tokens", UINT32, "many")), "data"),
    "wrong type": (replaced(tensor("max_tokens", "INT64", 5)), "data-type"),
    "wrong shape": (replaced(tensor("max_tokens", UINT32, 5, 6)), "shape"),
    "no batch dimension": (replaced(tensor("text_input", BYTES, "hello", shape=[1])), "batch"),
    "two texts": (replaced(tensor("text_input", BYTES, "one", "two", shape=[2, 1])), "batch"),
    "no value": (replaced({"name": "max_tokens", "datatype": UINT32, "shape": [1, 0], "data": []}), "shape"),
    "a prompt longer than the context": (tutorial(text="word " * 3000), "exceeds the available context size"),
    "too many words": (tutorial(bad=["x"] * 3 + [str(number) for number in range(99)]), "at most 64 words"),
    "negative temperature": (replaced(tensor("temperature", FP32, -0.5)), "temperature is -0.5"),
    "unknown input": (replaced(tensor("beam_width", UINT32, 1)), "beam_width"),
    "not JSON": ("{", "parse"),
}


@pytest.mark.parametrize(("request_", "message"), REFUSED.values(), ids=REFUSED)
def test_bad_input_gets_a_message_and_the_server_stays(server: Server, request_: Any, message: str) -> None:
    assert message in server.infer(request_).error
    assert server.infer(tokens=1).output


def test_text_that_is_not_utf_8_is_refused(server: Server) -> None:
    """As the binary protocol brings it: JSON in front, then the tensor, its length first."""
    script = r"""
import http.client, json
data = b"\x02\0\0\0\xff\xfe"
head = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "parameters": {"binary_data_size": len(data)}}
tokens = {"name": "max_tokens", "datatype": "UINT32", "shape": [1, 1], "data": [4]}
body = json.dumps({"inputs": [head, tokens]}).encode()
connection = http.client.HTTPConnection("127.0.0.1", 8000)
length = {"Inference-Header-Content-Length": str(len(body))}
connection.request("POST", "/v2/models/ensemble/infer", body + data, length)
print(connection.getresponse().read().decode())
"""
    assert "text_input is not UTF-8" in server.python(script)
    assert server.ready()


def test_bad_input_of_a_stream_gets_a_message(server: Server) -> None:
    assert "must be from 1 to 2048" in server.stream(tokens=0).error
    assert "exceeds the available context size" in server.stream("word " * 3000).error
    assert server.stream(tokens=1).output


# What goes wrong does not stay wrong.


def test_a_client_that_leaves_frees_its_place(server: Server) -> None:
    """Two clients take both places with long answers and leave early. The next need not wait for the rest."""
    whole = server.stream(LONG, 300)
    assert len(whole.events) > 200, "the prompt must have a long answer for this test"
    with ThreadPoolExecutor(2) as pool:
        for answer in pool.map(lambda _: server.stream(LONG, 300, leave_after=10), range(2)):
            assert len(answer.events) == 10
    assert server.stream(tokens=1).seconds < whole.seconds / 2


def test_an_answer_that_takes_too_long_is_given_up(start: Launch, model: Path, tmp_path: Path) -> None:
    """Triton does not notice that the client of a request without a stream has gone."""
    folder = altered(model, tmp_path, "timeout", "5")
    server = start(folder).wait_ready()
    answer = server.infer(text=LONG, tokens=2000)
    assert "not complete within 5 s" in answer.error
    assert server.stream(LONG, 60).output, "a stream has no such limit"
    assert server.infer(tokens=1).output


def altered(model: Path, tmp_path: Path, key: str, value: str) -> Path:
    """A copy of the model folder, its weights shared, with another value in both configurations."""
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(folder.stat().st_mode | 0o055)
    folder = tmp_path / "model"
    shutil.copytree(model, folder, copy_function=os.link)
    for config in folder.glob("*/config.pbtxt"):
        text, count = re.subn(f'(key: "{key}" value {{ string_value: ")[^"]*', rf"\g<1>{value}", config.read_text())
        assert count == 1
        config.unlink()
        config.write_text(text)
    return folder


def test_requests_in_flight_are_finished_at_sigterm(start: Launch, model: Path) -> None:
    """Signalled are the models' processes too, as a terminal or a careless supervisor does it."""
    server = start(model).wait_ready()
    before = server.stubs()
    with ThreadPoolExecutor(2) as pool:
        whole, pieces = pool.submit(server.infer, text=LONG, tokens=60), pool.submit(server.stream, LONG, 60)
        while any(after.ticks < before[name].ticks + 20 for name, after in server.stubs().items()):
            assert not whole.done(), "the request was too short for this test"
            assert not pieces.done()
        server.signal("TERM", "triton*")
        assert whole.result().output
        assert len(pieces.result().events) > 50
    assert server.wait_exit(40) == 0


@pytest.mark.parametrize("name", ["ensemble", "ensemble_stream"])
def test_the_server_ends_when_a_model_s_process_dies(start: Launch, model: Path, name: str) -> None:
    """Triton itself would stay ready and fail every request."""
    server = start(model).wait_ready()
    server.run(f"kill -KILL {server.stubs()[name].pid}")
    assert server.wait_exit(5) != 0


def test_a_model_without_weights_ends_the_server(start: Launch, model: Path, tmp_path: Path) -> None:
    server = start(altered(model, tmp_path, "weights", "gone.gguf"))
    assert server.wait_exit(60) != 0
    assert "gone.gguf" in server.logs()


# The surroundings.


def test_a_package_may_bring_its_own_script(start: Launch, model: Path, tmp_path: Path) -> None:
    """The tutorial's layout: model/triton_serving.sh and folders beside it, nothing executable."""
    folder = tmp_path / "model"
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(parent.stat().st_mode | 0o055)
    shutil.copytree(model, folder / "llama_7b", copy_function=os.link)
    script = folder / "triton_serving.sh"
    script.write_text(
        "echo the script of the package\nexec /opt/modelarts-engine/bin/start /home/mind/model/llama_7b\n"
    )
    script.chmod(0o644)
    server = start(folder).wait_ready()
    assert "the script of the package" in server.logs()
    assert server.infer(tokens=5).output


def test_nothing_listens_but_on_loopback(server: Server) -> None:
    """HTTP, gRPC and metrics of Triton, and what the runtime opens for itself."""
    lines = server.run("cat /proc/net/tcp /proc/net/tcp6").splitlines()
    listening = {tuple(line.split()[1].split(":")) for line in lines if line.split()[3:4] == ["0A"]}
    assert {int(port, 16) for _, port in listening} >= {8000, 8001, 8002}
    assert {address for address, _ in listening} == {"0100007F"}


def test_the_runtime_s_own_port_is_shut(server: Server) -> None:
    script = """
import urllib.request, urllib.error
rows = [line.split() for line in open("/proc/net/tcp")]
for port in {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A"} - {8000, 8001, 8002}:
    for path in ("/completion", "/slots", "/props"):
        try:
            print(port, path, urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", b'{"prompt": "x"}').status)
        except urllib.error.HTTPError as error:
            print(port, path, error.code)
"""
    answers = server.python(script)
    codes = [line.split()[2] for line in answers.splitlines()]
    assert len(codes) == 6
    assert set(codes) == {"401"}
