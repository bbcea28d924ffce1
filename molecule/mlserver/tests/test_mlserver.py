"""The start command and the real server behind it: what is served and what is refused."""

import json
import pathlib
import time

import pytest

START = "/opt/modelarts-engine/bin/start"
MODEL = "/home/mind/model"
REHEARSAL = pathlib.Path(__file__).resolve().parents[3] / "roles/mlserver/rehearsal"
AS_USER = "setpriv --reuid 1000 --regid 100 --clear-groups"
ASK = """
import json, sys, urllib.error, urllib.request
method, path, body = sys.argv[1:]
headers = {"Content-Type": "application/json"}
data = body.encode() if method == "POST" else None
request = urllib.request.Request("http://127.0.0.1:8083" + path, data, headers, method=method)
try:
    answer = urllib.request.urlopen(request, timeout=30)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(7)
print(answer.status, answer.read().decode())
"""


@pytest.fixture(autouse=True)
def homes(host):
    """The folders that the platform and other roles bring, gone after the test."""
    mine = [path for path in ("/home/ma-user", "/home/mind") if not host.file(path).exists]
    host.check_output(f"mkdir -p {MODEL} /home/ma-user && chown 1000:100 /home/ma-user && chmod 0755 {MODEL}")
    yield
    host.check_output(f"rm -rf {' '.join(mine)}")


def train(host, path):
    host.check_output(
        f"PYTHONPATH=/opt/mlserver python3 -B - {path} <<'EOT'\n{(REHEARSAL / 'make_model.py').read_text()}\nEOT"
    )


def ask(host, method, path, body=None):
    done = host.run("python3 -B -c %s %s %s %s", ASK, method, path, json.dumps(body))
    status, _, answer = done.stdout.partition(" ")
    return int(status or 0), json.loads(answer) if answer.strip() else None


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"rmdir {MODEL}", ["no folder", 'called "model"']),
        (f"chmod 0700 {MODEL}", ["uid 1000 gid 100 may not read", "0755"]),
        (f"touch {MODEL}/model.joblib", ["no model-settings.json", "It holds: model.joblib"]),
    ],
)
def test_a_folder_without_a_model_is_refused(host, content, words):
    host.check_output(content)
    result = host.run(f"cd / && {AS_USER} {START}")
    assert result.rc == 2
    assert result.stdout.startswith("start: ")  # standard output is where the platform looks
    assert all(word in result.stdout for word in words), result.stdout


def test_the_model_is_what_its_script_makes_and_is_served(host):
    """Byte by byte: the pins hold numpy, scikit-learn and joblib, too."""
    kept = REHEARSAL / "model/iris"
    host.check_output(f"mkdir {MODEL}/iris")
    train(host, f"{MODEL}/iris/model.joblib")
    assert host.file(f"{MODEL}/iris/model.joblib").content == (kept / "model.joblib").read_bytes()
    host.check_output(
        f"cat >{MODEL}/iris/model-settings.json <<'EOT'\n{(kept / 'model-settings.json').read_text()}\nEOT"
    )
    host.check_output(f"{AS_USER} setsid {START} >/tmp/log 2>&1 & echo $! >/tmp/pid")
    try:
        end = time.monotonic() + 120
        while ask(host, "GET", "/v2/health/ready")[0] != 200:
            assert host.run("kill -0 $(cat /tmp/pid)").rc == 0, host.run("cat /tmp/log").stdout
            assert time.monotonic() < end, host.run("cat /tmp/log").stdout
            time.sleep(0.5)
        rows = [[5.1, 3.5, 1.4, 0.2], [6.7, 3.0, 5.2, 2.3]]
        body = {"inputs": [{"name": "flowers", "datatype": "FP64", "shape": [2, 4], "data": rows}]}
        status, answer = ask(host, "POST", "/v2/models/iris/infer", body)
        assert (status, answer["outputs"][0]["data"]) == (200, [0, 2])
        assert ask(host, "POST", "/v2/models/other/infer", body)[0] == 404
    finally:
        host.run("kill -- -$(cat /tmp/pid); rm -rf /tmp/log /tmp/pid")


def test_nothing_is_left_of_the_installation(host):
    """No private key of a test, no bytecode that looks at its source's time, and pip is not part of it."""
    assert host.run("find /opt/mlserver -name '*.key' -o -name '*key*.pem' -o -type d -name tests").stdout == ""
    assert not host.file("/opt/mlserver/pip").exists
    assert host.run("find / -xdev -name '*.whl' -o -xdev -name mlserver.new").stdout == ""
