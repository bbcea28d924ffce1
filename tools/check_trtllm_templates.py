#!/usr/bin/env python3
"""Tries the filler of the llama package on the real templates of every listed release.

`tools/check_trtllm_templates.py REPOSITORY` takes a clone of triton-inference-server/tensorrtllm_backend (a git directory will do).
For each release: the documented values fill everything; upstream's own filler, given the same values, writes the same text; and the
values of the platform's tutorial are taken or refused, with what to give instead.
"""

from __future__ import annotations

import argparse
import io
import string
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "roles/trtllm_model/files/serving")]

import templates  # noqa: E402
from ansible_collections.modelarts.engine.plugins.module_utils import trtllm  # noqa: E402

FIXED = {
    "engine_dir": "/tmp/engines/0123",  # noqa: S108
    "tokenizer_dir": "/home/mind/model/llama_7b",
    "triton_max_batch_size": 1,
    "max_beam_width": 1,
}
# What the tutorial's script gives beside those.
TUTORIAL = {
    "tokenizer_type": "llama", "preprocessing_instance_count": 1, "postprocessing_instance_count": 1, "decoupled_mode": "False",
    "max_tokens_in_paged_kv_cache": 2560, "max_attention_window_size": 2560, "kv_cache_free_gpu_mem_fraction": 0.5,
    "exclude_input_in_output": "True", "enable_kv_cache_reuse": "False", "batching_strategy": "V1", "max_queue_delay_microseconds": 600,
}  # fmt: skip


def unpack(repository: str, release: str, folder: str, dest: Path) -> Path | None:
    """The models of a release's in-flight batcher, or None where its templates lie in another repository."""
    got = subprocess.run(["git", "-C", repository, "archive", release, folder], capture_output=True, check=False)
    if got.returncode:
        return None
    with tarfile.open(fileobj=io.BytesIO(got.stdout)) as tar:
        tar.extractall(dest, filter="data")
    return dest / folder / "inflight_batcher_llm"


def same_as_upstream(folder: Path, filled: dict[str, str]) -> bool:
    """Whether upstream's way of filling (`string.Template`), given the same values, gives the same text."""
    values = {key: default for key, (_, default) in templates.KEYS.items()} | FIXED
    rendered = {
        key: "" if value == templates.UNSET else str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in values.items()
    }
    for model, text in filled.items():
        theirs = string.Template((folder / model / "config.pbtxt").read_text()).safe_substitute(rendered)
        # A key in a comment is nobody's: upstream fills it, this filler lets it be.
        if [line for line in theirs.splitlines() if not line.startswith("#")] != [
            line for line in text.splitlines() if not line.startswith("#")
        ]:
            return False
    return True


def main() -> int:
    """Prints one line per release; the exit code is 1 where one does not fill."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("repository")
    repository = parser.parse_args().repository
    bad = 0
    for release, row in trtllm.load().items():
        with tempfile.TemporaryDirectory() as scratch:
            folder = unpack(repository, release, row["templates"], Path(scratch))
            if folder is None:
                print(f"{release}: its templates lie in another repository")
                continue
            try:
                filled = templates.fill(folder, {}, FIXED)
            except templates.TemplateError as error:
                print(f"{release}: NOT FILLED\n{error}")
                bad = 1
                continue
            places = sum(len(templates.slots(path.read_text(), "")) for path in folder.glob("*/config.pbtxt"))
            same = same_as_upstream(folder, filled)
            bad |= not same
            print(
                f"{release}: {len(filled)} models, {places} places filled, {'same text as' if same else 'NOT AS'} upstream's filler"
            )
            try:
                templates.fill(folder, TUTORIAL, FIXED)
                print("  the tutorial's values are taken")
            except templates.TemplateError as error:
                print("  the tutorial's values are refused:\n    " + str(error).replace("\n", "\n    "))
    return bad


if __name__ == "__main__":
    sys.exit(main())
