"""The helper by itself: what it makes in an empty folder, and what it leaves nowhere."""

import pytest

TLS = "/home/ma-user/.serving/tls"


@pytest.fixture(scope="module")
def made(host):
    """Lets the helper make everything, as it does when a container starts."""
    host.run("rm -rf /home/ma-user/.serving; mkdir -p /home/ma-user/.serving")
    start = f"setsid /opt/modelarts-engine/bin/tls >/dev/null 2>&1 & echo $!; timeout 30 sh -c 'until [ -e {TLS}/passphrase ]; do sleep 0.1; done'"
    leader = host.check_output(start)
    yield host
    host.run(f"kill -KILL -- -{leader}; rm -rf /home/ma-user/.serving")


def test_the_certificate_is_signed_by_the_ca_a_client_reads(made):
    assert made.run(f"openssl verify -CAfile {TLS}/ca.crt {TLS}/server.pem").rc == 0
    text = made.check_output(f"openssl x509 -in {TLS}/server.pem -noout -text")
    for name in ("DNS:localhost", "IP Address:127.0.0.1", "DNS:model.example", "IP Address:192.0.2.7"):
        assert name in text


def test_the_passphrase_opens_the_key_as_often_as_asked(made):
    for _ in range(3):
        assert made.run(f"timeout 10 openssl pkey -in {TLS}/server.pem -passin file:{TLS}/passphrase -noout").rc == 0
    assert made.run(f"openssl pkey -in {TLS}/server.pem -passin pass:wrong -noout").rc != 0


def test_nothing_is_readable_for_others_and_no_ca_key_is_left(made):
    assert made.check_output(f"find -L {TLS} -perm /077") == ""
    assert (
        made.check_output(f"grep -l 'BEGIN.*PRIVATE KEY' {TLS}/*.crt {TLS}/*.ca {TLS}/*.pem; true")
        == f"{TLS}/server.pem"
    )


def test_no_trace_of_the_installation(host):
    assert host.check_output("find /var/lib/apt/lists /var/cache/apt -type f ! -name lock 2>/dev/null; true") == ""
