#!/bin/sh
# Usage: prove.sh FILE…
# Prints what a file of the backend lacks when uid 1000 loads it with nothing in its environment; exit code 1 where there is something.
set -eu
for name in "$@"; do
  setpriv --reuid 1000 --regid 100 --clear-groups env -i PATH=/usr/bin:/bin LC_ALL=C ldd -r "/opt/tritonserver/backends/tensorrtllm/$name" 2>&1
done | awk '
  /^[ \t]*lib(cuda|nvidia-ml|nvidia-[a-z-]+)\.so[.0-9]* => not found/ { next }
  /undefined symbol:[ \t]+(cu|nvml)[A-Z]/ { next }
  /not found|undefined symbol|cannot|error|No such file/ { sub(/^[ \t]+/, ""); print; bad = 1 }
  END { exit bad }'
