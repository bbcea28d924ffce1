"""SmolLM2 as a Triton model: a chat prompt in, the answer out, with the tensors of TensorRT-LLM's `ensemble`.

The same file serves `ensemble` (one response for a request) and `ensemble_stream` (decoupled: a response for each
piece of text). They are Python models and no Triton ensembles, because an ensemble (Triton 2.51) does not tell its
steps that the client has gone.

Both models map the same weights, so memory holds them once. Requests wait in a queue and are answered by as many
threads as llama.cpp has slots. Nothing random is used unless `temperature` is given.
"""

from __future__ import annotations

import json
import math
import os
import secrets
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from words import forbidding_grammar, parse_words

# Threads of llama.cpp that wait must sleep: where cores are shared or limited by a quota, spinning makes an answer take
# many times as long. Read when the runtime is imported.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def usable_cores(group: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores this container may use, the quota of its control group (version 1 or 2) included."""
    cores = len(os.sched_getaffinity(0))
    for files in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        try:
            quota, period = map(int, " ".join((group / file).read_text() for file in files).split())
        except (OSError, ValueError):  # the other version, or "max": no limit
            continue
        if quota > 0:  # -1: no limit
            return max(1, min(cores, math.ceil(quota / period)))
    return cores


def read_text(request: Any, name: str) -> list[str]:
    """Return the elements of a BYTES tensor, empty if it was not sent. Raises ValueError if they are not UTF-8."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return []
    try:
        return [bytes(element).decode() for element in tensor.as_numpy().ravel()]
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} is not UTF-8: {error}") from None


def read_number(request: Any, name: str, least: float, most: float) -> Any:
    """Return the only element of a tensor or None. Raises ValueError if it is out of range."""
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    if tensor is None:
        return None
    value = tensor.as_numpy().ravel()[0].item()
    if not least <= value <= most:  # false for NaN too
        raise ValueError(f"{name} is {value}, must be from {least} to {most}")
    return value


class TritonPythonModel:
    """What the Python backend calls."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the weights; return when requests can be answered."""
        config = json.loads(args["model_config"])
        settings = {key: value["string_value"] for key, value in config["parameters"].items()}
        self.stream = config.get("model_transaction_policy", {}).get("decoupled", False)
        self.context = int(settings["context"])
        self.timeout = float(settings["timeout"])
        slots = int(settings["slots"])
        try:
            import xllamacpp
        except ImportError as error:
            raise pb_utils.TritonModelException(
                f"this image lacks the runtime of the model (role llama_cpp): {error}"
            ) from None

        params = xllamacpp.CommonParams()
        params.model.path = str(Path(args["model_repository"]).parent / settings["weights"])
        params.n_ctx = self.context * slots
        params.n_parallel = slots
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = usable_cores()
        params.fit_params = False
        params.verbosity = 1
        # Answers must not depend on earlier requests, and the cache would take up to 8 GiB.
        params.cache_prompt = False
        params.cache_ram_mib = 0
        # The runtime opens an HTTP port on loopback that nobody is to use.
        params.ui = False
        params.endpoint_slots = False
        params.api_keys = [secrets.token_hex(32)]
        self.server = xllamacpp.Server(params)
        # The runtime would stop at SIGTERM in the middle of requests. A stub ignores it: Triton tells it when to go.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        # Triton does not restart a stub that dies in this mode, yet stays ready and fails each request for ever. So the
        # stub's death has to be the server's death, which the platform answers with a new container. (Process 1 cannot
        # be killed from inside, only asked to end.)
        self.watch = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r bye || { kill -KILL "$1"; kill -TERM "$1"; }', "watch", str(os.getppid())],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        self.pool = ThreadPoolExecutor(slots)

    def execute(self, requests: list[Any]) -> None:
        """Queue the requests; each gets its responses from a thread of the pool."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                body = self.read(request)
            except ValueError as error:
                self.fail(sender, str(error))
            else:
                self.pool.submit(self.answer, sender, body, time.monotonic() + self.timeout)

    def finalize(self) -> None:
        """Let what is in flight finish, then stop."""
        self.pool.shutdown()
        self.watch.communicate(b"bye\n")
        del self.server

    def read(self, request: Any) -> dict[str, Any]:
        """Return the request as llama.cpp's chat interface takes it. Raises ValueError with a message for the user."""
        text = "".join(read_text(request, "text_input"))
        if not text.strip():
            raise ValueError("text_input is missing or empty")
        tokens = read_number(request, "max_tokens", 1, self.context)
        if tokens is None:  # Triton counts inputs, it does not look whether those that are required are among them
            raise ValueError("max_tokens is missing")
        body = {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": tokens,
            "stop": parse_words(read_text(request, "stop_words")),
            "temperature": read_number(request, "temperature", 0, 10) or 0,
            "stream": True,
            "return_progress": True,
        }
        for name, theirs, least, most in (
            ("top_k", "top_k", 0, 2**31 - 1),
            ("top_p", "top_p", 0, 1),
            ("random_seed", "seed", 0, 2**32 - 2),
        ):
            value = read_number(request, name, least, most)
            if value is not None:
                body[theirs] = value
        banned = parse_words(read_text(request, "bad_words"))
        if banned:
            body["grammar"] = forbidding_grammar(banned)
        return body

    def answer(self, sender: Any, body: dict[str, Any], deadline: float) -> None:
        """Generate the answer to one request and send it."""
        pieces: list[str] = []
        problem: list[str] = []

        def on_event(event: dict[str, Any]) -> bool:
            """Take a piece of the answer; return whether to stop."""
            if "choices" not in event:
                problem.append(str(event.get("error", event).get("message", event)))
                return True
            text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
            if text and self.stream:
                sender.send(self.response(text))
            elif text:
                pieces.append(text)
            return gone()

        def gone() -> bool:
            if not self.stream and time.monotonic() > deadline:
                problem.append(f"the answer was not complete within {self.timeout:g} s: ask for fewer tokens")
            return bool(problem) or sender.is_cancelled()

        try:
            if not gone():
                self.server.handle_chat_completions(body, on_event)
            if problem:
                self.fail(sender, problem[0])
            elif self.stream:
                sender.send(flags=FINAL)
            else:
                sender.send(self.response("".join(pieces)), flags=FINAL)
        except Exception as error:
            pb_utils.Logger.log_error(f"request failed: {error!r}")
            self.fail(sender, f"the model failed: {error}")

    @staticmethod
    def response(text: str) -> Any:
        """Return a response with one text of shape [1, 1]."""
        return pb_utils.InferenceResponse(
            [pb_utils.Tensor("text_output", np.array([[text.encode()]], dtype=np.object_))]
        )

    @staticmethod
    def fail(sender: Any, message: str) -> None:
        """End a request with a message for the user."""
        sender.send(
            pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INVALID_ARG)),
            flags=FINAL,
        )
