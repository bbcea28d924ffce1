#!/bin/sh
# Starts the model of this folder on Triton with TensorRT-LLM: finds or builds its engine, fills the templates, runs the server in the foreground.
#   --check           only says whether this folder fits this image; needs no GPU
#   --prebuild DIR    builds the engine for this host's GPUs into DIR and ends
set -eu
here=$(cd "$(dirname "$0")" && pwd)
exec python3 -B "$here/serving/serve.py" "$@"
