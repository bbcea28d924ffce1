# Copyright: the modelarts.engine authors
# Apache License 2.0 (see LICENSE or https://www.apache.org/licenses/LICENSE-2.0)
"""The Python that Ansible's modules run with in a build container: the base's own, or one that is borrowed for the time of a stage.

A borrowed Python comes from the base's own package sources, so it fits its C library, and is unpacked on the container's volume: nothing
is installed, and nothing of it is in the file system that is committed. It finds its libraries by the loader's option, not by the
environment, so that programs which the modules start do not see them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.modelarts.engine.plugins.module_utils import engine

PATH = f"{engine.VOLUME}/python3"
OLDEST, NEWEST = 8, 13  # minor versions that the modules of ansible-core 2.19 run with
BORROWED = f"{engine.VOLUME}/borrowed-python"

# What a layer must not hold where the base had no Python of its own.
TRACES = ("/usr/bin/python3*", "/usr/lib/python3*", "/etc/python3*", "/var/lib/dpkg/info/*python3*")

_CHECK = f"""
import ctypes, grp, hashlib, json, pwd, selectors, subprocess, sys, tempfile, urllib.request, zipfile
sys.exit(sys.version_info < (3, {OLDEST}))
"""

_BORROW = f"""
set -eu
home={BORROWED}
apt="-q -o Dir::State::Lists=$home/lists -o Dir::Cache=$home/cache -o Dir::Log=$home -o APT::Sandbox::User=root -o Debug::NoLocking=1"
mkdir -p $home/lists/partial $home/cache/archives/partial $home/root
apt-get $apt -o Acquire::Languages=none update
minor=$(apt-cache $apt pkgnames python3. | sed -n 's/^python3\\.\\([0-9]*\\)$/\\1/p' | sort -n |
  while read -r n; do [ "$n" -lt {OLDEST} ] || [ "$n" -gt {NEWEST} ] || echo "$n"; done | tail -n 1)
none() {{ echo "they have no Python from 3.{OLDEST} to 3.{NEWEST}" >&2; exit 4; }}
[ -n "$minor" ] || none
# Again, where the package system has them and they do not work.
apt-get $apt -y --no-install-recommends --download-only --reinstall install \
  "python3.$minor" "python3.$minor-minimal" "libpython3.$minor-minimal" "libpython3.$minor-stdlib"
ls $home/cache/archives/python3.*.deb >/dev/null 2>&1 || none
for package in $home/cache/archives/*.deb; do dpkg-deb -x "$package" $home/root; done
rm -rf $home/lists $home/cache
loader=$(ls /lib64/ld-linux-*.so.* /lib/ld-linux-*.so.* 2>/dev/null | head -n 1)
libraries=$(ls -d $home/root/usr/lib/*-linux-gnu* $home/root/lib/*-linux-gnu* 2>/dev/null | tr '\\n' ':')
printf '#!/bin/sh\\nexec %s --library-path "%s" %s "$@"\\n' "$loader" "$libraries" "$home/root/usr/bin/python3.$minor" >{PATH}.new
chmod 755 {PATH}.new
mv {PATH}.new {PATH}
"""


def provide(client: Any, container: str, stage: str, environment: Mapping[str, str]) -> bool:
    """Makes `PATH` a Python that Ansible can use; returns whether it had to be borrowed.

    :param stage: name of the stage, for messages.
    :param environment: what the build's downloads need, such as a proxy.
    :raises EngineError: the base has none, and none can be borrowed.
    """
    own = "/usr/bin/python3"
    if _usable(client, container, own):
        _run(client, container, f"ln -s {own} {PATH}")
        return False
    lacking = f"the base of stage {stage} has no Python that Ansible can use at {own} (3.{OLDEST} or later, with its whole standard library)"
    if _run(client, container, "command -v apt-get && command -v dpkg-deb")[0]:
        raise engine.EngineError(
            f"{lacking} and no apt to borrow one with; take a base of Debian or Ubuntu, or one that has Python"
        )
    code, output = _run(client, container, _BORROW, environment)
    if code or not _usable(client, container, PATH):
        said = "; ".join(line for line in output.strip().splitlines()[-4:] if line)
        raise engine.EngineError(
            f"{lacking}, and none could be borrowed from its own package sources: {said or 'it does not run'}. "
            "Check that the build containers reach them (image_build_network, image_build_environment, image_build_ca_bundle)"
        )
    return True


def is_borrowed(client: Any, container: str) -> bool:
    """Whether a build container's Python was borrowed."""
    return _run(client, container, f"test -d {BORROWED}")[0] == 0


def _usable(client: Any, container: str, path: str) -> bool:
    return _run(client, container, f'test -x {path} && exec {path} -B -c "$1"', {}, _CHECK)[0] == 0


def _run(
    client: Any, container: str, script: str, environment: Mapping[str, str] | None = None, *arguments: str
) -> tuple[int, str]:
    return engine.execute(client, container, ["sh", "-c", script, "sh", *arguments], environment=environment)
