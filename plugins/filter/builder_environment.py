# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The environment of a builder's long steps: where its caches are, and how git finds mirrors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

# The caches are mounted there; see `CACHES` of the stage engine.
CACHES = "/tmp/cache"  # noqa: S108

TOOLS = {
    "PIP_BREAK_SYSTEM_PACKAGES": "1",
    "PIP_CACHE_DIR": f"{CACHES}/pip",
    "PIP_ROOT_USER_ACTION": "ignore",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    "CCACHE_DIR": f"{CACHES}/ccache",
    **{f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX", "CUDA")},
    "DEBIAN_FRONTEND": "noninteractive",
    "GIT_TERMINAL_PROMPT": "0",
}


def builder_environment(mirrors: Mapping[str, str]) -> dict[str, str]:
    """Environment variables.

    :param mirrors: beginnings of addresses of git repositories, and what to ask instead.
    """
    settings = [(f"url.{mirror}.insteadOf", real) for real, mirror in sorted(mirrors.items())]
    settings += [("safe.directory", "*")]
    git = {
        f"GIT_CONFIG_{part}_{n}": pair[at]
        for n, pair in enumerate(settings)
        for at, part in enumerate(("KEY", "VALUE"))
    }
    return {**TOOLS, **git, "GIT_CONFIG_COUNT": str(len(settings))}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., dict[str, str]]]:
        """By name."""
        return {"builder_environment": builder_environment}
