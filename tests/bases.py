"""Names of the bootstrapped bases that the suites share: each is made once for each version of the role that makes it."""

import hashlib
from pathlib import Path

ROLE = Path(__file__).resolve().parents[1] / "roles" / "base_image"


def base_name(flavour: str) -> str:
    """The image of a flavour of `base_image`, named as `molecule/shared/create.yml` does."""
    folders = ("defaults", "files", "files/tfserving", "tasks", "vars")
    files = [path for folder in folders for path in (ROLE / folder).glob("*")]
    texts = [path.read_text().rstrip() for path in sorted(files, key=str) if path.is_file()]
    return f"modelarts-engine/test-base:{hashlib.sha256(''.join(texts).encode()).hexdigest()[:12]}-{flavour}"
