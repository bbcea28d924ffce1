# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Runs a long command on the target and follows its output. Nothing of it stays on the target: its log is in the task's temporary folder."""

from __future__ import annotations

import base64
import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.modelarts.engine.plugins.module_utils import buildlog

# Seconds between two looks: soon at first, since many commands are short.
FIRST, LONGEST = 0.1, 3.0
KEPT = 200_000  # characters of output


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.watch`."""

    _VALID_ARGS = frozenset(("argv", "what"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        argv = [str(word) for word in self._task.args["argv"]]
        if self._task.check_mode:
            return {**result, "changed": True, "skipped": True, "msg": "a command is not run in check mode"}
        folder = self._make_tmp_path()
        try:
            code, output = self._follow(folder, argv)
        finally:
            self._remove_tmp_path(folder, force=True)
        result.update(changed=True, rc=code, stdout=output[-KEPT:])
        if code:
            what = self._task.args.get("what") or argv[0]
            result.update(failed=True, msg=f"{what} failed ({code}): {buildlog.explain(output)}")
        return result

    def _shell(self, script: str) -> str:
        done = self._low_level_execute_command(script, sudoable=True)
        if done["rc"]:
            raise AnsibleActionFail(f"the target does not answer as it should: {done['stderr'] or done['stdout']}")
        return str(done["stdout"])

    def _follow(self, folder: str, argv: list[str]) -> tuple[int, str]:
        """Starts the command and reads its output until it has ended; returns its exit code and all output."""
        environment = self._compute_environment_string()
        at = shlex.quote(folder)
        job = f"{environment} {shlex.join(argv)} >{at}/log 2>&1 </dev/null; echo $? >{at}/code.new; mv {at}/code.new {at}/code"
        self._shell(f": >{at}/log; setsid sh -c {shlex.quote(job)} >/dev/null 2>&1 </dev/null & echo $! >{at}/pid")
        # Encoded, so that whatever the command prints comes through; the exit code first, so that no output after it is missed.
        look = f"cat {at}/code 2>/dev/null || {{ kill -0 $(cat {at}/pid) 2>/dev/null && echo running || cat {at}/code 2>/dev/null || echo gone; }}"
        output, read, wait, shown = "", 0, FIRST, ""
        while True:
            state, _, encoded = self._shell(f"{look}; tail -c +{read + 1} {at}/log | base64").partition("\n")
            piece = base64.b64decode(encoded)
            read += len(piece)
            output += piece.decode(errors="replace")
            line = buildlog.progress(output[-20_000:])
            if line and line != shown:
                self._display.display(line)
                shown = line
            if state.strip() == "gone":
                raise AnsibleActionFail("the command was killed together with its shell")
            if state.strip() != "running":
                return int(state), output
            time.sleep(wait)
            wait = min(wait * 1.5, LONGEST)
