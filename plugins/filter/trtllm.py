# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""What is known of a release of the TensorRT-LLM backend, for recipes and inventories."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleFilterError
from ansible_collections.modelarts.engine.plugins.module_utils import keys, trtllm


def trtllm_release(
    release: str, base: str = "", route: str = "", allow_untested: bool = False, releases_file: str = ""
) -> dict[str, Any]:
    """A release's facts, as `trtllm.choose` returns them."""
    path = Path(releases_file).expanduser() if releases_file else trtllm.LISTED
    try:
        return trtllm.choose(
            str(release), base=str(base), route=str(route), allow_untested=bool(allow_untested), path=path
        )
    except keys.InputError as error:
        raise AnsibleFilterError(str(error)) from error


def trtllm_route(release: str, route: str = "", releases_file: str = "") -> str:
    """The route that a build of a release takes: the one that is given, or the first that the release offers.

    Empty without a release. What cannot be had is not said here but by `trtllm_release`, where an argument needs it.
    """
    if not release or route:
        return route if release else ""
    try:
        return str(trtllm_release(release, releases_file=releases_file)["route"])
    except AnsibleFilterError:
        return "image"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """By name."""
        return {"trtllm_release": trtllm_release, "trtllm_route": trtllm_route}
