#!/bin/bash
# Usage: wheel.sh ROOT ARCHITECTURES JOBS
set -euo pipefail
root=$1 architectures=$2 jobs=$3
export ENV=$root/env
set +u
# shellcheck source=/dev/null
. "$ENV"
set -u
cd "$root/source/tensorrt_llm"
echo "compiling for $architectures, $jobs at a time"
python3 scripts/build_wheel.py --trt_root /usr/local/tensorrt --cuda_architectures "$architectures" --job_count "$jobs"
python3 -m pip install --no-build-isolation build/tensorrt_llm*.whl
ccache --show-stats 2>/dev/null | head -n 8 || true
