#!/bin/bash
# Usage: backend.sh ROOT TAG JOBS
# Upstream's build.sh runs cmake without the tags of Triton's repositories, which are "main" then. A toolchain file is read before they are set.
set -euo pipefail
root=$1 tag=$2 jobs=$3
export ENV=$root/env
set +u
# shellcheck source=/dev/null
. "$ENV"
set -u
for part in COMMON CORE BACKEND; do
  echo "set(TRITON_${part}_REPO_TAG $tag CACHE STRING \"\")"
done >/tmp/triton-tags.cmake
export CMAKE_TOOLCHAIN_FILE=/tmp/triton-tags.cmake MAKEFLAGS=-j$jobs
cd "$root/source/inflight_batcher_llm"
rm -rf build
echo "compiling against Triton $tag"
bash scripts/build.sh
