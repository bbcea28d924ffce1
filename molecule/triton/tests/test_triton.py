"""The start command: what it starts and what it refuses. (With a real model: tests/integration/local_model.)"""

import pytest

START = "/opt/modelarts-engine/bin/start"
MODEL = "/home/mind/model"


@pytest.fixture(autouse=True)
def homes(host):
    """The folders that the platform and other roles bring, gone after the test."""
    mine = [path for path in ("/home/ma-user", "/home/mind") if not host.file(path).exists]
    host.check_output(f"mkdir -p {MODEL} /home/ma-user && chown 1000:100 /home/ma-user && chmod 0755 {MODEL}")
    yield
    host.check_output(f"rm -rf {' '.join(mine)}")


@pytest.fixture
def start(host):
    """Runs the command as the platform's user, from a place it may not write to."""
    return lambda argument="": host.run(f"cd / && setpriv --reuid 1000 --regid 100 --clear-groups {START} {argument}")


def refused(result, *words):
    assert result.rc == 2
    assert result.stdout.startswith("start: ")  # standard output is where the platform looks
    assert all(word in result.stdout for word in words), result.stdout


def test_it_is_root_s_and_anybody_may_run_it(host):
    file = host.file(START)
    assert (file.user, file.group, file.mode) == ("root", "root", 0o755)


def test_a_missing_folder_is_refused(host, start):
    host.check_output(f"rmdir {MODEL}")
    refused(start(), f"no folder {MODEL}", 'called "model"')


def test_an_unreadable_folder_is_refused(host, start):
    host.check_output(f"chmod 0700 {MODEL}")
    refused(start(), "uid 1000 gid 100 may not read", "0755")


@pytest.mark.parametrize("content", ["true", "touch notes.txt", "mkdir weights", "mkdir a && touch a/config.txt"])
def test_a_folder_without_a_model_is_refused(host, start, content):
    host.check_output(f"cd {MODEL} && {content}")
    refused(start(), "holds no model", host.check_output(f"ls -A {MODEL}"))


def test_a_home_that_cannot_be_written_is_refused(host, start):
    host.check_output("chown 0:0 /home/ma-user")
    refused(start(), "may not write to /home/ma-user")


def test_more_models_than_shared_memory_takes_are_refused(host, start):
    """A hundred Python models need 101 MiB of the 64 that the platform gives."""
    host.check_output(f"cd {MODEL} && for n in $(seq 100); do mkdir m$n && touch m$n/config.pbtxt; done")
    refused(start(), "/dev/shm has", "100 models need about 103424 KiB", "triton_shm_default_bytes")


def test_the_package_s_own_script_is_run(host, start):
    """It need not be executable, and it finds a home, a server and a place for caches."""
    host.check_output(
        f"cd {MODEL} && echo 'env; command -v tritonserver; exit 7' > triton_serving.sh && chmod 0644 triton_serving.sh"
    )
    result = start()
    assert result.rc == 7
    lines = result.stdout.splitlines()
    assert {"HOME=/home/ma-user", "HF_HOME=/home/ma-user/.cache/huggingface", "TMPDIR=/tmp"} <= set(lines)
    assert lines[-1] == "/opt/tritonserver/bin/tritonserver"


def test_the_package_s_own_script_may_give_another_repository(host, start):
    host.check_output(f"echo 'exec {START} /srv' > {MODEL}/triton_serving.sh")
    refused(start(), "/srv holds no model")


def test_an_unreadable_script_is_refused(host, start):
    host.check_output(f"cd {MODEL} && touch triton_serving.sh && chmod 0600 triton_serving.sh")
    refused(start(), "may not read", "triton_serving.sh")


def test_further_arguments_reach_the_server_as_they_are(host, start):
    """The server takes the arguments, one with blanks and a quote, and fails at the model, which is not one."""
    host.check_output(f"mkdir -p {MODEL}/broken && echo 'backend: \"none\"' > {MODEL}/broken/config.pbtxt")
    result = start()
    assert result.rc not in (0, 2)
    assert "it's here" in result.stdout
    assert "failed to load all models" in result.stdout or "broken" in result.stdout
