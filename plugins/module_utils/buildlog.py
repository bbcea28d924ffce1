# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What a compiler's output says: how far it is, and why it failed."""

from __future__ import annotations

import re

# `[12/340]` of ninja, `[ 12%]` of make.
_PROGRESS = re.compile(r"\[\s*(?:(\d+)/(\d+)|(\d{1,3})%)\]")

# The first that is found tells more than those after it.
_CAUSES = (
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        "the disk is full; free some on the build host, finished stages are kept",
    ),
    (
        re.compile(r"Killed signal terminated|fatal error: Killed|(?<![\w-])Killed\s*$|signal 9|virtual memory exhausted|cannot allocate memory", re.M | re.I),
        "a process was killed, as happens when memory runs out; compile with fewer jobs at a time, or on a host with more memory",
    ),
    (
        re.compile(r"undefined (?:reference|symbol)"),
        "a symbol is missing: the parts were compiled for different versions or C++ ABIs",
    ),
    (
        re.compile(r"Could not resolve host|Connection (?:timed out|refused)|Temporary failure in name resolution|Network is unreachable"),
        "a host could not be reached from the build container",
    ),
    (
        re.compile(r"certificate verify failed|SSL certificate problem|x509: certificate", re.I),
        "a certificate is not trusted in the build container; image_build_ca_bundle names the site's own authority",
    ),
)  # fmt: skip
# Not compilers' flags such as -Werror and -Wno-error.
_ERRORS = re.compile(r"(?<![-\w])(?:error|ERROR|fatal)\b|Error:|FAILED|undefined (?:reference|symbol)|No space left")


def progress(text: str) -> str:
    """The last `[n/m]` or `[n%]` line of a piece of output, without its ends' spaces; empty where there is none."""
    found = [line.strip() for line in text.splitlines() if _PROGRESS.search(line)]
    return found[-1][:160] if found else ""


def share(line: str) -> float | None:
    """How much of the work a progress line says is done, 0 to 1."""
    found = _PROGRESS.search(line)
    if not found:
        return None
    done, of, percent = found.groups()
    return int(percent) / 100 if percent else int(done) / max(int(of), 1)


def explain(text: str, lines: int = 6) -> str:
    """The likely cause of a failure, and the first lines that say an error, of a log. A script of ours says its own after `refused: `."""
    refused = [line.removeprefix("refused: ") for line in text.splitlines() if line.startswith("refused: ")]
    if refused:
        return "\n".join(refused)
    cause = next((said for pattern, said in _CAUSES if pattern.search(text)), "")
    errors = [line.strip() for line in text.splitlines() if _ERRORS.search(line)]
    shown = errors[:lines] or text.strip().splitlines()[-lines:]
    return "\n".join(filter(None, [cause, *(line[:300] for line in shown)]))
