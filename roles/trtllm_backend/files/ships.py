"""Prints, as JSON, what of TensorRT-LLM an image ships: its files, packages with versions, Triton's release, and folders of libraries."""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path

BACKEND = Path("/opt/tritonserver/backends/tensorrtllm")
NAMES = ("tensorrt-llm", "tensorrt", "torch")

packages: dict[str, str] = {}
folders = [str(BACKEND), "/opt/tritonserver/lib"]
for name in NAMES:
    try:
        package = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        continue
    packages[name] = package.version
    found = {
        Path(os.path.normpath(str(package.locate_file(file)))).parent
        for file in package.files or []
        if ".so" in Path(str(file)).suffixes
    }
    folders += sorted(str(folder) for folder in found if folder.name in ("lib", "libs", "tensorrt_libs"))
# LD_LIBRARY_PATH is what NVIDIA's image finds its libraries by.
folders += [
    path for path in os.environ.get("LD_LIBRARY_PATH", "").split(":") if Path(path).is_dir() and "/compat" not in path
]
folders += [path for path in ("/usr/local/tensorrt/lib",) if Path(path).is_dir()]
print(
    json.dumps(
        {
            "files": sorted(path.name for path in BACKEND.glob("*")) if BACKEND.is_dir() else [],
            "packages": packages,
            "base": os.environ.get("NVIDIA_TRITON_SERVER_VERSION", ""),
            "folders": list(dict.fromkeys(folders)),
        }
    )
)
