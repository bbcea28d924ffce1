"""Planted credentials are found nowhere after a push that has been watched all the time."""

from __future__ import annotations

import json
import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path

import docker
import pytest

from tests.fixtures import planted
from tests.fixtures.registry import Site
from tests.fixtures.swr import Swr

from .conftest import ACCESS_KEY, MB, PASSWORD, PASSWORD_LOGIN, REGION, ROOT, SECRET_KEY, command, environment

TOKEN = f"token-{uuid.uuid4().hex}"


@pytest.mark.parametrize("kind", ["password", "long_term", "temporary"])
@pytest.mark.parametrize("fate", ["arrives", "fails"])
def test_planted_credentials_are_nowhere(
    kind: str,
    fate: str,
    image: Callable[..., str],
    registry: Site,
    swr: Swr,
    repository: str,
    client: docker.DockerClient,
    tmp_path: Path,
) -> None:
    login = PASSWORD_LOGIN
    if kind != "password":
        login = {"HUAWEICLOUD_SDK_AK": ACCESS_KEY, "HUAWEICLOUD_SDK_SK": SECRET_KEY, "HUAWEICLOUD_SDK_PROJECT_ID": "p1"}
    if kind == "temporary":
        swr.security_token = TOKEN
        login = {**login, "HUAWEICLOUD_SDK_SECURITY_TOKEN": TOKEN}
    from ansible_collections.modelarts.engine.plugins.module_utils import registry as logins

    def words() -> list[bytes]:
        made = logins.long_term_login(REGION, ACCESS_KEY, SECRET_KEY).password
        return planted.forms(PASSWORD, ACCESS_KEY, SECRET_KEY, TOKEN, made, *swr.given)

    name = image(2 * MB)
    registry.proxy.faults.rate = MB
    if fate == "fails":
        registry.proxy.faults.denied = True
    extra = {"swr_push_region": REGION, "swr_push_api_url": f"https://{swr.host}"}
    options = ["--tag", "1", "-e", json.dumps(extra), "--output", str(tmp_path / "result.json")]
    options += ["--create"] if kind != "password" else []
    started = time.time() - 1
    with planted.Watch(words) as watch:
        done = subprocess.run(
            command(registry, name, *options, to=repository),
            cwd=ROOT,
            env=environment(**login),
            capture_output=True,
            check=False,
        )
    assert done.returncode == (0 if fate == "arrives" else 1), done.stderr.decode()
    assert kind != "temporary" or swr.given
    assert watch.samples > 20
    assert watch.hits == set()
    assert planted.left(words(), started, [ROOT / ".cache/runs", tmp_path], [registry.registry.folder]) == []
    everything = done.stdout + done.stderr + planted.of_image(client, name, tmp_path)
    assert [word for word in words() if word in everything] == []
    config = Path.home() / ".docker/config.json"
    assert registry.host not in (config.read_text() if config.exists() else "")
