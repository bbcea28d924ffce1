"""One line per step with its elapsed time: the current one is redrawn on a terminal, elsewhere each is printed when it ends."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from typing import Any, TextIO

# Roles of the build host whose work is a step of its own.
STEPS = {"base_image": ("base", "made"), "model_package": ("model", "packed")}

# How the lines of tasks begin that say how far they are.
SAID = re.compile(r"(?:push [\w.-]+|look-up): ")
# A compiler's own count, `[12/340]` or `[ 12%]`.
COMPILED = re.compile(r"\[\s*(?:(\d+)/(\d+)|(\d{1,3})%)\]")


def size(count: int) -> str:
    """Bytes as people say them, decimal: `12.3 MB`."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


class Progress:
    """Follows a run's events.

    :param stream: where the lines go; redrawn in place where it is a terminal.
    :param tables: whether to print the tables of fit and unfit, too.
    """

    def __init__(self, name: str, stream: TextIO | None = None, *, tables: bool = False) -> None:
        self.name = name
        self._tables = tables
        self.stream = stream or sys.stdout
        self._terminal = self.stream.isatty()
        self._started = self._step_started = time.monotonic()
        self._drawn = 0.0
        self._role = ""
        self._changed = False
        self._tenth = -1

    def event(self, kind: str, data: dict[str, Any]) -> None:
        """One event of ansible-runner, with its data."""
        if kind == "playbook_on_task_start":
            role = str(data.get("role") or "").rpartition(".")[2]
            if role != self._role:
                if self._changed and self._role in STEPS:
                    self.step(*STEPS[self._role])
                self._role, self._changed = role, False
            self._draw(f"{role}: {data.get('task')}" if role else str(data.get("task")))
        elif kind == "runner_on_ok" and isinstance(data.get("res"), dict):
            self._changed = self._changed or bool(data["res"].get("changed"))
            self._result(str(data.get("task_action")).rpartition(".")[2], data["res"])

    def said(self, text: str) -> None:
        """A line that a long task says while it runs."""
        if count := COMPILED.match(text):
            done, of, percent = count.groups()
            tenth = int(percent) // 10 if percent else 10 * int(done) // max(int(of), 1)
            # Elsewhere than on a terminal a line for each tenth is enough.
            if self._terminal:
                self._draw(text)
            elif tenth != self._tenth:
                self._print(f"{self.name:<10} {text}")
            self._tenth = tenth
        elif SAID.match(text):
            self._draw(text) if self._terminal else self._print(f"{self.name:<10} {text}")

    def _result(self, action: str, result: dict[str, Any]) -> None:
        for problem in result.get("problems") or []:
            self.note(f"{self.name:<10} note       {problem}")
        if action == "image_stage" and "cached" in result:
            for name in result["cached"]:
                self.step(name, "cached")
        elif action == "image_stage" and "key" in result:
            self.step(result["stage"], f"built, +{size(result['bytes'])}")
        elif action == "image_stage" and "names" in result:
            self.step("image", f"{result['names'][0]}, {size(result['bytes'])}")
        elif action == "image_push" and "reference" in result:
            self.step("push", f"{', '.join(result['tags'])}, {size(result['bytes_pushed'])} sent")
        elif action == "image_rehearse":
            self.step("rehearsal", f"healthy after {result['ready_seconds']:.1f} s, answered")
        elif self._role == "build_host" and action == "assert" and "\n" in str(result.get("msg")):
            self.step("host", "fit")
            if self._tables:
                self._print(str(result["msg"]))

    def step(self, step: str, what: str) -> None:
        """A finished step's line: what it is, how it ended, the time since the step before."""
        now = time.monotonic()
        self._print(f"{self.name:<10} {step:<10} {what:<52} {now - self._step_started:7.1f} s")
        self._step_started = now

    def _draw(self, text: str) -> None:
        if self._terminal:
            line = f"{self.name:<10} {text[:90]}  {time.monotonic() - self._step_started:.0f} s"
            self.stream.write(f"\r\033[K{line}")
            self.stream.flush()
            self._drawn = 1

    def _print(self, line: str) -> None:
        if self._terminal and self._drawn:
            self.stream.write("\r\033[K")
            self._drawn = 0
        # Whoever read along may have gone; what is under way goes on.
        with contextlib.suppress(OSError):
            print(line, file=self.stream, flush=True)

    def note(self, text: str) -> None:
        """A line of its own."""
        self._print(text)

    def error(self, text: str) -> None:
        """An error, on standard error."""
        self.finish()
        print(f"error: {text}", file=sys.stderr, flush=True)

    def finish(self) -> None:
        """Clears the current line."""
        if self._terminal and self._drawn:
            self.stream.write("\r\033[K")
            self.stream.flush()
            self._drawn = 0

    @property
    def elapsed(self) -> float:
        """Seconds since this began."""
        return time.monotonic() - self._started
