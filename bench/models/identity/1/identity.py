"""Answers what it was sent: all that is left to measure is the way there and back."""

from typing import Any

import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> list[Any]:
        tensors = [pb.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb.InferenceResponse([pb.Tensor("y", tensor)]) for tensor in tensors]
