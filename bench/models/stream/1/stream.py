"""Sends x numbers, 5 ms apart, as a language model sends tokens."""

import time
from typing import Any

import numpy
import triton_python_backend_utils as pb


class TritonPythonModel:
    def execute(self, requests: list[Any]) -> None:
        for each in requests:
            sender = each.get_response_sender()
            for number in range(int(pb.get_input_tensor_by_name(each, "x").as_numpy()[0])):
                sender.send(pb.InferenceResponse([pb.Tensor("y", numpy.array([number], numpy.int32))]))
                time.sleep(0.005)
            sender.send(flags=pb.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
