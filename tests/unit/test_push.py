"""Sizes, retries, the push's stream and what it leaves, on made-up engines and clocks."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.modelarts.engine.plugins.action import image_push
from ansible_collections.modelarts.engine.plugins.module_utils import logins, push, registry
from docker.errors import APIError

LOGIN = registry.Login("user", "a password")
GB = push.GB
NAME = "registry.example/org/image:1"


def test_sizes_at_the_limits_pass_and_above_are_refused() -> None:
    history = [{"Size": 3 * GB, "CreatedBy": "a b"}, {"Size": 2 * GB, "Comment": "stage two"}]
    push.check_size({"Size": 5 * GB}, history, 3 * GB, 5 * GB)
    with pytest.raises(push.TooBigError, match=r"3\.00 GB, the limit is 2\.5 GB.*\(a b\)"):
        push.check_size({"Size": 5 * GB}, history, 2_500_000_000, 5 * GB)
    with pytest.raises(push.TooBigError, match=r"image has 5\.00 GB, the limit is 4 GB"):
        push.check_size({"Size": 5 * GB}, history, 3 * GB, 4 * GB)


@pytest.mark.parametrize(
    ("host", "config"),
    [
        ("127.0.0.1:5000", {"InsecureRegistryCIDRs": ["127.0.0.0/8"]}),
        ("localhost:5000", {"InsecureRegistryCIDRs": ["::1/128", "127.0.0.0/8"]}),
        ("registry.example", {"IndexConfigs": {"registry.example": {"Secure": False}}}),
    ],
)
def test_a_registry_without_verification_is_refused(host: str, config: dict[str, Any]) -> None:
    with pytest.raises(push.PushError, match="would not verify the certificate of"):
        push.check_trust({"RegistryConfig": config}, host)


def test_other_registries_are_verified() -> None:
    config = {"InsecureRegistryCIDRs": ["127.0.0.0/8"], "IndexConfigs": {"docker.io": {"Secure": True}}}
    push.check_trust({"RegistryConfig": config}, "192.0.2.1:5000")
    push.check_trust({}, "192.0.2.1")


def failing(*errors: Exception) -> Callable[[], str]:
    left = list(errors)

    def once() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return once


def test_it_waits_longer_each_time() -> None:
    waited: list[float] = []
    said: list[str] = []
    errors = [push.PushError("no", transient=True)] * 7
    assert push.persistently("push 1", 8, said.append, failing(*errors), waited.append) == "done"
    assert all(2**n / 2 <= pause <= 2**n for n, pause in enumerate(waited[:5], 1))
    assert max(waited) <= push.LONGEST_WAIT
    assert said[0].startswith("push 1: no; attempt 2 of 8 in ")


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (push.PushError("final"), 1),
        (push.TakenError("taken"), 1),
        (registry.LoginError("wrong"), 1),
        (registry.CertificateError("wrong"), 1),
        (registry.RegistryError("500"), 3),
        (push.PushError("cut", transient=True), 3),
    ],
)
def test_only_what_may_do_better_is_tried_again(error: Exception, tries: int) -> None:
    waited: list[float] = []
    with pytest.raises(type(error)):
        push.persistently("push", 3, lambda _: None, failing(*[error] * 9), waited.append)
    assert len(waited) == tries - 1


class Engine:
    """An engine's client whose push says these lines."""

    def __init__(self, *lines: Any) -> None:
        self.lines = lines
        self.asked: dict[str, Any] = {}
        self.closed = False
        self.api = self

    def push(self, repository: str, **options: Any) -> Iterator[Any]:
        self.asked = {"repository": repository, **options}
        for line in self.lines:
            if isinstance(line, Exception):
                raise line
            yield line

    def close(self) -> None:
        self.closed = True


def pushed(engine: Engine, said: Callable[[str], None] = lambda _: None) -> tuple[str, dict[str, str]]:
    layers = push.Layers("push 1", said, clock=iter(range(0, 1000, 2)).__next__)
    digest = push.engine_push("unix:///none", NAME, LOGIN, layers, 9, connect=lambda **_: engine)
    return digest, layers.states


def test_the_stream_is_read_line_by_line() -> None:
    said: list[str] = []
    detail = {"status": "Pushing", "progressDetail": {"current": 1_000_000, "total": 9_000_000}, "id": "aaa"}
    engine = Engine(
        {"status": "The push refers to repository [x]"},
        {"status": "Preparing", "progressDetail": {}, "id": "aaa"},
        *[detail] * 6,
        {"status": "Retrying in 5 seconds", "id": "aaa"},
        {"status": "Pushed", "id": "aaa"},
        {"status": "Layer already exists", "id": "bbb"},
        {"status": "Mounted from org/other", "id": "ccc"},
        {"progressDetail": {}, "aux": {"Tag": "1", "Digest": "sha256:d", "Size": 1}},
    )
    assert pushed(engine, said.append) == ("sha256:d", {"aaa": "pushed", "bbb": "exists", "ccc": "mounted"})
    assert engine.asked["auth_config"] == {"username": "user", "password": "a password"}
    assert engine.closed
    assert said.count("push 1: layer aaa 1.0 of 9.0 MB") == 2, "a line every five seconds, and a tick is two"
    assert "push 1: layer aaa retrying in 5 seconds" in said


@pytest.mark.parametrize(
    ("lines", "word", "transient"),
    [
        ([{"errorDetail": {"message": "unauthorized: authentication required"}}], "unauthorized", True),
        ([{"error": "received unexpected HTTP status: 500"}], "500", True),
        ([{"error": "denied: you do not have the permission"}], "--create", False),
        ([{"error": "manifest invalid: fail to parse manifest.json"}], "schema 2", False),
        ([{"error": "Get https://x/v2/: x509: certificate signed by unknown authority"}], "certs.d", False),
        ([{"status": "Pushed", "id": "aaa"}], "without a digest", True),
        ([OSError("UnixHTTPConnectionPool: Read timed out.")], "nothing moved for 9 s", True),
        ([ConnectionResetError("reset by peer")], "reset by peer", True),
        ([APIError("server error")], "server error", True),
    ],
)
def test_errors_of_the_stream_are_errors(lines: list[Any], word: str, transient: bool) -> None:
    engine = Engine(*lines)
    with pytest.raises(push.PushError, match=word) as caught:
        pushed(engine)
    assert caught.value.transient is transient
    assert engine.closed


SOME_TYPE = "application/vnd.oci.image.manifest.v1+json"


@pytest.mark.parametrize(
    ("manifest", "same"),
    [
        (registry.Manifest("sha256:m", registry.SCHEMA2, "sha256:c", ()), True),
        (registry.Manifest("sha256:c", registry.SCHEMA2, "sha256:x", ()), True),
        (registry.Manifest("sha256:m", registry.SCHEMA2, "sha256:x", ()), False),
        (registry.Manifest("sha256:m", SOME_TYPE, "sha256:c", ()), False),
    ],
    ids=["by its configuration", "by its manifest", "another image", "another type"],
)
def test_what_counts_as_the_same_image(manifest: registry.Manifest, same: bool) -> None:
    assert push.same(manifest, "sha256:c") is same


@pytest.fixture
def having(monkeypatch: pytest.MonkeyPatch) -> Callable[..., logins.Credentials]:
    """having(*names): what an environment with these credentials gives."""
    for name in registry.SECRETS:
        monkeypatch.delenv(name, raising=False)

    def make(*names: str) -> logins.Credentials:
        for name in names:
            monkeypatch.setenv(getattr(registry, name), "x")
        return logins.Credentials()

    return make


@pytest.mark.parametrize(
    ("kind", "given", "chosen"),
    [
        ("auto", ["USER", "PASSWORD", "ACCESS_KEY", "SECRET_KEY"], "password"),
        ("auto", ["ACCESS_KEY", "SECRET_KEY"], "long_term"),
        ("auto", ["ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN"], "temporary"),
        ("temporary", ["ACCESS_KEY", "SECRET_KEY"], "temporary"),
        ("long_term", ["USER", "PASSWORD", "ACCESS_KEY", "SECRET_KEY"], "long_term"),
    ],
)
def test_the_login_that_is_chosen(
    kind: str, given: list[str], chosen: str, having: Callable[..., logins.Credentials]
) -> None:
    assert having(*given).kind(kind) == chosen


@pytest.mark.parametrize(
    ("kind", "given", "word"),
    [
        ("auto", [], "HUAWEICLOUD_SDK_AK and HUAWEICLOUD_SDK_SK, or REGISTRY_USERNAME"),
        ("auto", ["USER"], "set REGISTRY_PASSWORD"),
        ("temporary", ["ACCESS_KEY"], "set HUAWEICLOUD_SDK_SK"),
        ("password", ["ACCESS_KEY", "SECRET_KEY"], "REGISTRY_USERNAME and REGISTRY_PASSWORD"),
    ],
)
def test_missing_credentials_are_named(
    kind: str, given: list[str], word: str, having: Callable[..., logins.Credentials]
) -> None:
    with pytest.raises(registry.SecretsError, match=word):
        having(*given).kind(kind)


@pytest.mark.parametrize(
    ("host", "given", "user"),
    [
        ("registry.example", ["USER", "PASSWORD", "ACCESS_KEY", "SECRET_KEY"], "x"),
        ("swr.cn-north-4.myhuaweicloud.com", ["ACCESS_KEY", "SECRET_KEY"], "cn-north-4@x"),
        # An access key is for SWR alone; no other registry learns what is made of it.
        ("registry.example", ["ACCESS_KEY", "SECRET_KEY"], None),
        ("registry.example", [], None),
    ],
)
def test_the_cache_logs_in_as_a_push_does(
    host: str, given: list[str], user: str | None, having: Callable[..., logins.Credentials]
) -> None:
    fresh = having(*given).of_cache(host)
    assert (fresh().username if fresh else None) == user


def test_the_cache_takes_what_docker_has_for_its_host_first(
    having: Callable[..., logins.Credentials], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The password of a push is not for whichever registry the cache is in."""
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"cache.example": {"auth": "dTpw"}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    assert having("USER", "PASSWORD").of_cache("cache.example") is None
    assert having("USER", "PASSWORD").of_cache("other.example") is not None


def test_default_tags_are_revision_and_key(tmp_path: Path) -> None:
    image = {"Config": {"Labels": {"io.modelarts.engine.key": "0123456789abcdef"}}}
    assert image_push.default_tags(tmp_path, image) == ["0123456789ab"]

    def git(*words: str) -> str:
        identity = ["-c", "user.name=n", "-c", "user.email=e@example.com"]
        done = subprocess.run(["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    git("init", "-q")
    (tmp_path / "file").write_text("1")
    git("add", "file")
    git("commit", "-qm", "first")
    version = yaml.safe_load((image_push.ROOT / "galaxy.yml").read_text())["version"]
    revision = git("rev-parse", "--short=12", "HEAD")
    assert image_push.default_tags(tmp_path, image) == [f"{version}-g{revision}", "0123456789ab"]
    (tmp_path / "file").write_text("2")
    assert image_push.default_tags(tmp_path, image) == ["0123456789ab"], "a changed checkout is no revision"
    assert image_push.default_tags(tmp_path, {"Config": {"Labels": None}}) == []
