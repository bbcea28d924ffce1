"""Logins, names, files of credentials, and what a registry may answer."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from ansible_collections.modelarts.engine.plugins.module_utils import registry

from modelarts_engine import push as command

ROOT = Path(__file__).resolve().parents[2]
RULES = yaml.safe_load((ROOT / "roles/swr_push/vars/main.yml").read_text())
ORGANIZATION = re.compile(RULES["__swr_push_organization_name"])
REPOSITORY = re.compile(RULES["__swr_push_repository_name"])
# As it is published for organisations; it takes exponential time.
PUBLISHED = re.compile(r"[a-z]+(?:(?:(?:_|__|[-]*)[a-z0-9]+)+)?")
LOGIN = registry.Login("user", "word")


@pytest.mark.parametrize(
    ("region", "access", "secret", "password"),
    [
        # Computed with: printf %s ACCESS | openssl dgst -sha256 -hmac SECRET
        ("cn-north-4", "AKIDEXAMPLE", "SKEXAMPLE", "e7a250e6f642bb54ce8ab780bd768f335e14b39c8ddc1fc1203d311601d96838"),
        (
            "ap-southeast-1",
            "QTWAOYTTINDUT2QVKYUC",
            "MFyfvK41ba2giqM7Uio6PznpdUKGpownRZlmVmHc",
            "89aca1198a970e4360203d71cdaa80cfc13ecd55ee84409719e88162d139ef34",
        ),
    ],
)
def test_the_long_term_login(region: str, access: str, secret: str, password: str) -> None:
    login = registry.long_term_login(region, access, secret)
    assert (login.username, login.password) == (f"{region}@{access}", password)
    assert secret not in str(login)
    assert password not in repr(login)


def test_organisations_are_named_as_published_and_may_have_the_dot_that_the_sdk_documents() -> None:
    for length in range(1, 7):
        for letters in itertools.product("a1_-", repeat=length):
            name = "".join(letters)
            assert bool(ORGANIZATION.match(name)) == bool(PUBLISHED.fullmatch(name)), name
    assert ORGANIZATION.match("my.org")


@pytest.mark.parametrize(("rule", "most"), [(ORGANIZATION, 64), (REPOSITORY, 128)])
def test_names_have_a_length_an_end_and_take_no_time(rule: re.Pattern[str], most: int) -> None:
    assert rule.match("a" * most)
    for name in ("", "a" * (most + 1), "a.", "a-", "_a", "a___b", "a.-b", "A", "ä", "a\n", "a/b", "a b"):
        assert not rule.match(name), name
    # Within the length, and few letters first: where the time is exponential, these take seconds and the others for ever.
    for letters in (26, most - 1):
        started = time.perf_counter()
        for tail in (".", "!", "_", "-"):
            assert not rule.match("a" * letters + tail)
            assert not rule.match("a-" * (letters // 2) + tail)
        assert time.perf_counter() - started < 5
    assert not rule.match("a" * 64 + ".")


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("swr.cn-north-4.myhuaweicloud.com", "cn-north-4"),
        ("swr.eu-west-101.myhuaweicloud.eu", "eu-west-101"),
        ("swr.cn-north-4.myhuaweicloud.com.example.com", ""),
        ("registry.example.com:5000", ""),
    ],
)
def test_the_region_is_in_the_host_of_a_shared_registry(host: str, region: str) -> None:
    assert registry.region_of(host) == region


def credentials(path: Path, text: str, mode: int = 0o600) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


def test_credentials_come_from_a_file_or_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "# of the build account\nHUAWEICLOUD_SDK_AK=ak\n\nHUAWEICLOUD_SDK_SK=s=k #1 \nREGISTRY_USERNAME=\n"
    for name in registry.SECRETS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("REGISTRY_USERNAME", "from the environment")
    wanted = {"HUAWEICLOUD_SDK_AK": "ak", "HUAWEICLOUD_SDK_SK": "s=k #1 "}
    assert registry.secrets(credentials(tmp_path / "file", text)) == wanted
    assert registry.secrets("") == {"REGISTRY_USERNAME": "from the environment"}


@pytest.mark.parametrize(
    ("text", "mode", "word"),
    [
        ("REGISTRY_PASSWORD=hidden\n", 0o640, "chmod 600"),
        ("REGISTRY_PASSWORD=hidden\n", 0o604, "chmod 600"),
        ("hidden\n", 0o600, "line 1 is not NAME=VALUE"),
        ("REGISTRY_PASSWORD=x\nREGISTRY_PASWORD=hidden\n", 0o600, "line 2 is not NAME=VALUE"),
    ],
)
def test_bad_files_of_credentials_are_refused_and_not_repeated(tmp_path: Path, text: str, mode: int, word: str) -> None:
    with pytest.raises(registry.SecretsError, match=word) as caught:
        registry.secrets(credentials(tmp_path / "file", text, mode))
    assert "hidden" not in str(caught.value)


def test_a_missing_file_of_credentials_is_named(tmp_path: Path) -> None:
    with pytest.raises(registry.SecretsError, match=r"none: the credentials cannot be read: No such file"):
        registry.secrets(str(tmp_path / "none"))


def test_the_runner_hands_credentials_on_without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in registry.SECRETS:
        monkeypatch.delenv(name, raising=False)
    extra: dict[str, str] = {}
    with command.credentials(extra):
        assert extra == {}
    monkeypatch.setenv("REGISTRY_USERNAME", "user")
    monkeypatch.setenv("REGISTRY_PASSWORD", "word")
    with command.credentials(extra):
        path = extra["swr_push_credentials"]
        assert registry.secrets(path) == {"REGISTRY_USERNAME": "user", "REGISTRY_PASSWORD": "word"}
        assert str(Path(path).readlink()).startswith("/memfd:")
    assert not Path(path).exists()
    with command.credentials(named := {"swr_push_credentials": "/of/the/user"}):
        assert named == {"swr_push_credentials": "/of/the/user"}
    monkeypatch.setenv("REGISTRY_PASSWORD", "word\nREGISTRY_USERNAME=other")
    with pytest.raises(ValueError, match="line break"), command.credentials({}):
        pass


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("r.example:5000/org", {"swr_push_registry": "r.example:5000", "swr_push_organization": "org"}),
        (
            "r/org/repo",
            {"swr_push_registry": "r", "swr_push_organization": "org", "swr_push_repository": "repo"},
        ),
    ],
)
def test_where_to_is_taken_apart(text: str, parts: dict[str, str]) -> None:
    assert command.destination(text) == parts


@pytest.mark.parametrize("text", ["r", "r/", "/org", "r/org/repo:1", "r/org/a/b", "r/org/repo@sha256:1"])
def test_where_to_must_be_whole(text: str) -> None:
    with pytest.raises(ValueError, match="give REGISTRY/ORGANISATION"):
        command.destination(text)


class Answers:
    """Stands for the network: answers by URL, each used once, the last for ever."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **answers: list[tuple[int, dict[str, str], Any]]) -> None:
        self.asked: list[tuple[str, requests.PreparedRequest, dict[str, Any]]] = []
        self._answers = answers
        monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", self._send)

    def _send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        url = str(request.url)
        self.asked.append((url, request, options))
        left = self._answers["token" if "token" in url else "registry"]
        status, headers, body = left.pop(0) if len(left) > 1 else left[0]
        answer = requests.Response()
        answer.status_code = status
        answer.headers.update(headers)
        answer.raw = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        answer.request, answer.url = request, url
        return answer


MANIFEST = {
    "mediaType": registry.SCHEMA2,
    "config": {"digest": "sha256:c"},
    "layers": [{"digest": "sha256:l", "size": 7}],
}
TYPE = {"Content-Type": registry.SCHEMA2}
BYTES = json.dumps(MANIFEST).encode()
DIGEST = f"sha256:{hashlib.sha256(BYTES).hexdigest()}"


def test_a_manifest_is_what_its_bytes_are(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, registry=[(200, {**TYPE, "Docker-Content-Digest": DIGEST}, BYTES)])
    manifest = registry.Registry("r.example", LOGIN).manifest("org/repo", "1")
    assert manifest == registry.Manifest(DIGEST, registry.SCHEMA2, "sha256:c", tuple(MANIFEST["layers"]))


@pytest.mark.parametrize(
    ("status", "headers", "body", "word"),
    [
        (200, {**TYPE, "Docker-Content-Digest": "sha256:other"}, BYTES, "the registry says sha256:other"),
        (200, {"Content-Type": "application/json"}, BYTES, "the registry says the manifest is application/json"),
        (200, {}, b"<html>", "not what a registry holds"),
        (200, {}, b"[]", "not what a registry holds"),
        (403, {}, b"", "does not let this login read org/repo"),
        (418, {}, b"", "answers 418"),
    ],
)
def test_other_answers_are_errors(
    monkeypatch: pytest.MonkeyPatch, status: int, headers: dict[str, str], body: bytes, word: str
) -> None:
    Answers(monkeypatch, registry=[(status, headers, body)])
    with pytest.raises(registry.RegistryError, match=word):
        registry.Registry("r.example", LOGIN).manifest("org/repo", "1")


def test_a_tag_that_is_not_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    Answers(monkeypatch, registry=[(404, {}, b"")])
    assert registry.Registry("r.example", LOGIN).manifest("org/repo", "1") is None


CHALLENGE = {"WWW-Authenticate": 'Bearer realm="https://auth.example/token",service="r.example"'}


def test_a_token_is_fetched_where_the_registry_wants_one(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Answers(
        monkeypatch, registry=[(401, CHALLENGE, b""), (200, TYPE, BYTES)], token=[(200, {}, {"token": "tok"})]
    )
    assert registry.Registry("r.example", LOGIN, "/ca.pem").manifest("org/repo", "1")
    (_, first, _), (url, asked, options), (_, last, _) = network.asked
    assert url == "https://auth.example/token?service=r.example&scope=repository%3Aorg%2Frepo%3Apull%2Cpush"
    assert first.headers["Authorization"] == asked.headers["Authorization"] == "Basic dXNlcjp3b3Jk"
    assert last.headers["Authorization"] == "Bearer tok"
    assert [each[2]["verify"] for each in network.asked] == ["/ca.pem"] * 3
    assert options["verify"] == "/ca.pem"


def test_the_login_is_sent_over_tls_only(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"WWW-Authenticate": 'Bearer realm="http://auth.example/token"'}
    network = Answers(monkeypatch, registry=[(401, plain, b"")], token=[(200, {}, {"token": "tok"})])
    with pytest.raises(registry.RegistryError, match="not HTTPS"):
        registry.Registry("r.example", LOGIN).check()
    assert len(network.asked) == 1


@pytest.mark.parametrize(
    "answers",
    [
        {"registry": [(401, {}, b"")]},
        {"registry": [(403, {}, b"")]},
        {"registry": [(401, CHALLENGE, b"")], "token": [(401, {}, b"")]},
    ],
)
def test_a_login_that_is_refused_is_told(monkeypatch: pytest.MonkeyPatch, answers: dict[str, Any]) -> None:
    Answers(monkeypatch, **answers)
    with pytest.raises(registry.LoginError, match="refuses the login"):
        registry.Registry("r.example", LOGIN).check()


def test_a_registry_that_deletes_nothing_says_so_and_a_manifest_that_is_gone_is_fine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    network = Answers(monkeypatch, registry=[(405, {}, b""), (404, {}, b"")])
    made = registry.Registry("r.example", LOGIN)
    with pytest.raises(
        registry.RegistryError, match=r"r\.example has deletion switched off .*storage\.delete\.enabled"
    ):
        made.delete("org/cache", DIGEST)
    made.delete("org/cache", DIGEST)
    assert {(url, request.method) for url, request, _ in network.asked} == {
        (f"https://r.example/v2/org/cache/manifests/{DIGEST}", "DELETE")
    }


def test_without_a_login_none_is_sent(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "netrc").write_text("machine r.example login other password of-netrc\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    network = Answers(monkeypatch, registry=[(200, {"Docker-Content-Digest": DIGEST}, b"")])
    assert registry.Registry("r.example", registry.Login("", "")).digest("org/cache", "1") == DIGEST
    assert "Authorization" not in network.asked[0][1].headers


def test_an_answer_without_an_end_is_not_read_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.RawIOBase):
        given = 0

        def readinto(self, buffer: Any) -> int:
            self.given += len(buffer)
            return len(buffer)

    endless = Endless()
    answers = Answers(monkeypatch, registry=[(200, {}, b"")])
    plain = answers._send

    def send(request: requests.PreparedRequest, **options: Any) -> requests.Response:
        answer = plain(request, **options)
        answer.raw = endless
        return answer

    monkeypatch.setattr(requests.adapters.HTTPAdapter, "send", lambda _, request, **options: send(request, **options))
    with pytest.raises(registry.RegistryError, match=r"r\.example sends an answer without an end"):
        registry.Registry("r.example", LOGIN).check()
    assert endless.given < 2 * registry.ANSWER_BYTES


def test_how_long_to_wait_is_not_the_registry_s_to_say() -> None:
    session = registry.Registry("r.example", LOGIN)._session
    patience = session.get_adapter("https://r.example").max_retries
    assert not patience.respect_retry_after_header
