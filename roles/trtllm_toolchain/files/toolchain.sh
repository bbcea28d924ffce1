#!/bin/bash
# Usage: toolchain.sh ROOT ARCHIVE SCRIPT…
# Runs upstream's scripts unchanged. install_tensorrt.sh asks for its archive with wget; it is served the one that was checked, on loopback.
set -euo pipefail
root=$1 archive=$2
shift 2
common=$root/source/tensorrt_llm/docker/common

mapfile -t old < <(dpkg-query -W -f '${Package}\n' 'tensorrt*' 2>/dev/null)
if [ ${#old[@]} -gt 0 ]; then apt-get -q remove --purge --yes "${old[@]}"; fi
python3 -m pip uninstall --yes tensorrt

mkdir -p /tmp/served
ln -f "$archive" /tmp/served/tensorrt.tar.gz
python3 -B - >/tmp/served.port 2>/dev/null <<'PY' &
import functools, http.server
handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="/tmp/served")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
print(server.server_address[1], flush=True)
server.serve_forever()
PY
server=$!
trap 'kill $server' EXIT
until [ -s /tmp/served.port ]; do sleep 0.1; done
RELEASE_URL_TRT=http://127.0.0.1:$(cat /tmp/served.port)/tensorrt.tar.gz
# The scripts add what later steps need to the file that ENV names.
export RELEASE_URL_TRT ENV=$root/env
touch "$ENV"
cd /tmp
for script in "$@"; do
  if [ ! -f "$common/$script" ]; then
    echo "refused: the source has no docker/common/$script; the release's install_scripts do not fit it"
    exit 1
  fi
  echo "== $script"
  env no_proxy=127.0.0.1 NO_PROXY=127.0.0.1 bash "$common/$script"
done
