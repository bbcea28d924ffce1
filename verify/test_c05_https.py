"""C5 port: HTTPS on 8080."""

import http.client
import ssl

import pytest

from verify.contract import PORT, Contract


def test_c05_port_is_exposed(contract: Contract) -> None:
    """What a base declares beside it cannot be taken back by a commit, and publishes nothing."""
    assert f"{PORT}/tcp" in (contract.config["ExposedPorts"] or {})


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=lambda version: version.name)
def test_c05_answers_with(contract: Contract, version: ssl.TLSVersion) -> None:
    running = contract.get("platform")
    context = running.context()
    context.minimum_version = context.maximum_version = version
    with running.socket(context) as connection:
        assert connection.version() == version.name.replace("_", ".")


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1], ids=lambda version: version.name)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_c05_refuses(contract: Contract, version: ssl.TLSVersion) -> None:
    running = contract.get("platform")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = context.maximum_version = version
    with pytest.raises((ssl.SSLError, ConnectionResetError)) as refused:
        running.socket(context)
    assert "NO_PROTOCOLS_AVAILABLE" not in str(refused.value), "this machine cannot speak it, so nothing was tried"


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
def test_c05_certificate_verifies(contract: Contract, name: str) -> None:
    running = contract.get("platform")
    with running.socket(running.context(), name) as connection:
        assert connection.getpeercert()


def test_c05_certificate_is_of_this_start(contract: Contract) -> None:
    """A certificate that two containers share comes with a key that everybody has."""
    certificates = set()
    for kind in ("platform", "local root"):
        running = contract.get(kind)
        with running.socket(running.context()) as connection:
            certificates.add(connection.getpeercert(binary_form=True))
    assert len(certificates) == 2


def test_c05_no_service_in_the_clear(contract: Contract) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", contract.get("platform").port(), timeout=10)
    connection.request(contract.request.method, contract.request.path, contract.request.encoded())
    try:
        status = connection.getresponse().status
    except (ConnectionError, http.client.HTTPException):
        status = 0
    assert status in (0, 400, 426, 497)
