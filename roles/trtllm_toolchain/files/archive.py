"""Downloads an archive and checks it. Takes one argument, JSON: url, sha256, mirrors (beginning of an address: another), to."""

from __future__ import annotations

import hashlib
import json
import sys
import urllib.error
import urllib.request
from pathlib import Path

asked = json.loads(sys.argv[1])
url, to = str(asked["url"]), Path(asked["to"])
for begin, mirror in asked["mirrors"].items():
    if url.startswith(begin):
        url = mirror + url[len(begin) :]
        break
digest, size = hashlib.sha256(), 0
try:
    with urllib.request.urlopen(url, timeout=120) as answer, to.open("wb") as file:  # noqa: S310 - https, as was checked
        while piece := answer.read(1 << 20):
            digest.update(piece)
            size += file.write(piece)
except (urllib.error.URLError, OSError) as error:
    sys.exit(f"refused: {url} cannot be downloaded: {error}")
if digest.hexdigest() != asked["sha256"]:
    to.unlink()
    sys.exit(
        f"refused: {url} has the sha256 {digest.hexdigest()} ({size} bytes), and {asked['sha256']} was asked for. If the archive was "
        "truncated or answered by a login page, take another mirror (trtllm_mirrors); if NVIDIA has replaced it, check why, then set trtllm_tensorrt_sha256"
    )
print(f"{url}: {size} bytes, sha256 as asked for")
