"""Casts what the platform's tutorial sends as UINT32, and passes everything on to the release's own ensemble."""

from __future__ import annotations

import json
import threading
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

INNER = "ensemble_upstream"
CAST = ("max_tokens", "end_id", "pad_id")
LARGEST = 2**31 - 1


def _cast(tensor: Any) -> Any:
    if tensor.name() not in CAST:
        return tensor
    values = tensor.as_numpy()
    if values.size and int(values.max()) > LARGEST:
        raise ValueError(f"{tensor.name()} is larger than {LARGEST}")
    return pb_utils.Tensor(tensor.name(), values.astype(np.int32))


def _passed_on(request: Any) -> Any:
    return pb_utils.InferenceRequest(
        model_name=INNER,
        request_id=request.request_id(),
        requested_output_names=list(request.requested_output_names()),
        inputs=[_cast(tensor) for tensor in request.inputs()],
    )


def _answer(response: Any) -> Any:
    if response.has_error():
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(response.error().message()))
    return pb_utils.InferenceResponse(output_tensors=response.output_tensors())


class TritonPythonModel:
    """See the module."""

    def initialize(self, args: dict[str, str]) -> None:
        """Notes whether one request may have several responses."""
        self.decoupled = pb_utils.using_decoupled_model_transaction_policy(json.loads(args["model_config"]))

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """One response for each request; streamed ones are answered by a thread of their own."""
        if self.decoupled:
            for request in requests:
                threading.Thread(target=self._stream, args=(request, request.get_response_sender())).start()
            return None
        return [self._once(request) for request in requests]

    def _once(self, request: Any) -> Any:
        try:
            return _answer(_passed_on(request).exec())
        except Exception as error:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))

    def _stream(self, request: Any, sender: Any) -> None:
        try:
            for response in _passed_on(request).exec(decoupled=True):
                if response.has_error() or response.output_tensors():
                    sender.send(_answer(response))
        except Exception as error:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error))))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
