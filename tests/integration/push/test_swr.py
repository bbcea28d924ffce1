"""SWR's own logins and its management API, through Huawei's SDK and an emulator that checks each signature and each body's types."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import docker
import pytest

from tests.fixtures.registry import Site
from tests.fixtures.swr import Swr

from .conftest import ACCESS_KEY, MB, REGION, ROOT, SECRET_KEY, Pushed, environment

KEYS = {
    "HUAWEICLOUD_SDK_AK": ACCESS_KEY,
    "HUAWEICLOUD_SDK_SK": SECRET_KEY,
    "HUAWEICLOUD_SDK_PROJECT_ID": "0123456789abcdef0123456789abcdef",
}
Push = Callable[..., Pushed]
Image = Callable[..., str]


@pytest.fixture
def push_to_swr(push: Push, swr: Swr) -> Push:
    """push_to_swr(image, *options): with the access key, and the emulator's address."""

    def run(image: str, *options: str, login: dict[str, str] | None = None, **more: str) -> Pushed:
        extra = {"swr_push_region": REGION, "swr_push_api_url": f"https://{swr.host}"}
        return push(image, "-e", json.dumps(extra), *options, login=login or KEYS, **more)

    return run


def test_an_access_key_logs_in_by_its_hmac(
    push_to_swr: Push, image: Image, swr: Swr, registry: Site, repository: str
) -> None:
    pushed = push_to_swr(image(MB), "--tag", "1")
    assert pushed.code == 0, pushed.said
    assert registry.tags(repository) == ["1"]
    assert swr.calls == [], "a long-term login needs no management API"


def test_organisation_and_repository_are_made_when_allowed(
    push_to_swr: Push, image: Image, swr: Swr, repository: str
) -> None:
    name = image(MB)
    made = push_to_swr(name, "--tag", "1", "--create")
    assert made.code == 0, made.said
    organization, _, repo = repository.partition("/")
    assert swr.namespaces == {organization: {repo: {"repository": repo, "is_public": False, "category": "app_server"}}}
    swr.calls.clear()
    again = push_to_swr(name, "--tag", "1", "--create")
    assert (again.code, again.result["changed"]) == (0, False)
    assert [(method, status) for method, _, status in swr.calls] == [("GET", 200), ("GET", 200)]


def test_an_organisation_of_somebody_else_is_named(push_to_swr: Push, image: Image, registry: Site) -> None:
    pushed = push_to_swr(image(MB), "--tag", "1", "--create", to="taken-by-others/repo")
    assert pushed.code == 1
    assert "cannot create organisation taken-by-others: 409" in pushed.said
    assert registry.proxy.seen.uploaded == 0


def test_a_wrong_secret_key_is_told_by_the_management_api(push_to_swr: Push, image: Image) -> None:
    wrong = {**KEYS, "HUAWEICLOUD_SDK_SK": "wrong"}
    pushed = push_to_swr(image(MB), "--tag", "1", "--create", login=wrong)
    assert pushed.code == 1
    assert "verify aksk signature fail" in pushed.said


def test_a_login_that_ends_in_the_middle_is_made_anew(
    push_to_swr: Push, image: Image, swr: Swr, registry: Site, repository: str, client: docker.DockerClient
) -> None:
    name = image(3 * MB, MB)
    # Of the look-up, of the first push and of the second.
    swr.login_seconds = [3600, 2, 3600]
    registry.proxy.faults.rate = MB
    pushed = push_to_swr(name, "--tag", "1", "-e", "swr_push_login=temporary")
    assert pushed.code == 0, pushed.said
    assert registry.tags(repository) == ["1"]
    assert "attempt 2 of 5" in pushed.said
    assert len(set(swr.given)) == 3
    registry.proxy.faults.rate = 0
    uploaded = registry.proxy.seen.uploaded
    again = push_to_swr(name, "--tag", "2", "-e", "swr_push_login=temporary")
    assert (again.code, again.result["bytes_pushed"], registry.proxy.seen.uploaded) == (0, 0, uploaded)


def test_a_security_token_asks_for_a_temporary_login(push_to_swr: Push, image: Image, swr: Swr) -> None:
    swr.security_token = "a-token"
    pushed = push_to_swr(image(MB), "--tag", "1", login={**KEYS, "HUAWEICLOUD_SDK_SECURITY_TOKEN": "a-token"})
    assert pushed.code == 0, pushed.said
    assert swr.given


def test_without_the_sdk_it_says_what_to_install() -> None:
    code = (
        "import sys; sys.modules['huaweicloudsdkcore'] = None\n"
        "from modelarts_engine import engine_client\n"
        "from ansible_collections.modelarts.engine.plugins.module_utils import swr\n"
        "try: swr.Management('cn-north-4', {})\n"
        "except swr.SwrError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True, check=True
    )
    assert "huaweicloudsdkswr" in done.stdout
    assert "requirements-huawei.txt" in done.stdout
    assert (ROOT / "requirements-huawei.txt").exists()
