# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""Runs a finished image as the platform would, awaits `/health`, sends one request and marks the image as proven."""

from __future__ import annotations

import contextlib
import http.client
from typing import Any

from ansible.plugins.action import ActionBase
from ansible_collections.modelarts.engine.plugins.module_utils import engine, rehearsal, serving
from docker.errors import NotFound


class ActionModule(ActionBase):
    """See `ansible-doc modelarts.engine.image_rehearse`."""

    _requires_connection = False
    _VALID_ARGS = frozenset(("key", "model", "engine_url", "timeout", "prompt", "name"))

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        args = self._task.args
        key = str(args["key"])
        try:
            with engine.engine_errors():
                client = engine.connect(str(args["engine_url"]))
                asked = rehearsal.of_image(client.api.inspect_image(f"{engine.STAGE}:{key}"))
                prompt = str(args.get("prompt") or asked.question)
                name = engine.container_name(str(args["name"]), "rehearsal")
                engine.remove(client, name)
                container = serving.run_as_platform(client, f"{engine.STAGE}:{key}", str(args["model"]), name=name)
                try:
                    service = serving.Service(container)
                    ready = service.wait(float(args.get("timeout") or 120))
                    answer = service.infer(asked, prompt, expect="" if args.get("prompt") else asked.expect)
                finally:
                    with contextlib.suppress(NotFound):
                        container.remove(force=True, v=True)
                engine.tag(client, f"{engine.STAGE}:{key}", f"{engine.PROVEN}:{key}")
        except (
            engine.EngineError, serving.ServingError, rehearsal.RehearsalError, OSError, http.client.HTTPException
        ) as error:  # fmt: skip
            result.update(failed=True, exit_code=1, msg=f"the rehearsal failed: {error}")
            return result
        result.update(changed=True, prompt=prompt, answer=answer, ready_seconds=round(ready, 2))
        return result
