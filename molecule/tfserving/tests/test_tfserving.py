"""The start command and the server behind it: what is served, what is refused, and in which words."""

import json
import pathlib
import time

import pytest

START = "/opt/modelarts-engine/bin/start"
MODEL = "/home/mind/model"
SOURCE = pathlib.Path(__file__).resolve().parents[3] / "roles/tfserving/rehearsal/half_plus_two.py"
ASK = """
import json, sys, urllib.error, urllib.request
method, path, body = sys.argv[1:]
request = urllib.request.Request("http://127.0.0.1:8501" + path, body.encode() if method == "POST" else None, method=method)
try:
    answer = urllib.request.urlopen(request, timeout=10)
except urllib.error.HTTPError as error:
    answer = error
except OSError:
    sys.exit(7)
print(answer.status, answer.read().decode())
"""


def until(test, seconds=20):
    """The first truthy value of a test."""
    end = time.monotonic() + seconds
    while not (seen := test()):
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)
    return seen


@pytest.fixture(autouse=True)
def homes(host):
    """The folders that the platform and other roles bring, gone after the test."""
    mine = [path for path in ("/home/ma-user", "/home/mind") if not host.file(path).exists]
    host.check_output(
        f"rm -rf {MODEL} /tmp/new; mkdir -p {MODEL} /home/ma-user && chown 1000:100 /home/ma-user && chmod 0755 {MODEL}"
    )
    yield
    host.check_output(f"rm -rf {' '.join(mine)}")


class Server:
    """The start command, run as the platform's user, and requests to it."""

    def __init__(self, host):
        self.host = host

    def version(self, number, where=MODEL):
        """Writes half_plus_two and puts it in its place."""
        self.host.check_output(f"mkdir -p /tmp/new && python3 -B - /tmp/new/1 <<'EOT'\n{SOURCE.read_text()}\nEOT")
        self.host.check_output(f"mkdir -p {where} && mv /tmp/new/1 {where}/{number}")

    def start(self):
        self.host.check_output(
            f"cd / && setpriv --reuid 1000 --regid 100 --clear-groups setsid {START} >/tmp/log 2>&1 & echo $! >/tmp/pid"
        )
        until(lambda: "Exporting HTTP/REST API" in self.log() or not self.alive())
        assert self.alive(), self.log()

    def alive(self):
        return self.host.run("kill -0 $(cat /tmp/pid)").rc == 0

    def log(self):
        return self.host.run("cat /tmp/log").stdout

    def stop(self):
        self.host.run("kill -- -$(cat /tmp/pid); rm -f /tmp/log /tmp/pid")

    def ask(self, method, path, body=None):
        text = body if isinstance(body, str) else json.dumps(body)
        done = self.host.run("python3 -B -c %s %s %s %s", ASK, method, path, text)
        status, _, answer = done.stdout.partition(" ")
        return int(status or 0), json.loads(answer) if answer.strip().startswith("{") else answer

    def predict(self, body, where=""):
        return self.ask("POST", f"/v1/models/model{where}:predict", body)

    def states(self):
        entries = self.ask("GET", "/v1/models/model")[1]["model_version_status"]
        return {entry["version"]: entry["state"] for entry in entries}


@pytest.fixture
def server(host):
    server = Server(host)
    yield server
    server.stop()


def refused(host, *words):
    result = host.run(f"cd / && setpriv --reuid 1000 --regid 100 --clear-groups {START}")
    assert result.rc == 2
    assert result.stdout.startswith("start: ")  # standard output is where the platform looks
    assert all(word in result.stdout for word in words), result.stdout


def test_a_missing_folder_is_refused(host):
    host.check_output(f"rmdir {MODEL}")
    refused(host, f"no folder {MODEL}", 'called "model"')


def test_an_unreadable_folder_or_version_is_refused(host, server):
    server.version(1)
    host.check_output(f"chmod 0700 {MODEL}/1")
    refused(host, f"may not read {MODEL}/1", "0755")
    host.check_output(f"chmod 0700 {MODEL}")
    refused(host, f"uid 1000 gid 100 may not read {MODEL}", "0755")


@pytest.mark.parametrize("content", ["true", "mkdir 1", "mkdir v1 && touch v1/saved_model.pb", "touch saved_model.pb"])
def test_a_folder_without_a_version_is_refused(host, content):
    host.check_output(f"cd {MODEL} && {content}")
    refused(host, "holds no model", "folder with a number for its name", host.check_output(f"ls -A {MODEL}"))


def test_every_way_of_asking(server):
    server.version(3)
    server.start()
    assert server.predict({"instances": [1.0, 2.0, 5.0]}) == (200, {"predictions": [2.5, 3.0, 4.5]})
    assert server.predict({"inputs": {"x": [[1], [2]]}}, "/versions/3") == (200, {"outputs": [[2.5], [3.0]]})
    body = {"signature_name": "classify_x_to_y", "examples": [{"x": 1.0}, {"x": [5.0]}]}
    assert server.ask("POST", "/v1/models/model:classify", body) == (200, {"results": [[["", 2.5]], [["", 4.5]]]})
    examples = {"signature_name": "regress_x_to_y2", "context": {"x": 1.0}, "examples": [{}, {"x": 5.0}]}
    assert server.ask("POST", "/v1/models/model:regress", examples) == (200, {"results": [3.5, 5.5]})
    assert server.states() == {"3": "AVAILABLE"}
    status, metadata = server.ask("GET", "/v1/models/model/metadata")
    assert (status, metadata["model_spec"]["version"]) == (200, "3")
    assert (
        metadata["metadata"]["signature_def"]["signature_def"]["serving_default"]["inputs"]["x"]["dtype"] == "DT_FLOAT"
    )


WRONG = {
    "unknown model": ("/v1/models/other:predict", {"instances": [1.0]}, 404, "Servable not found for request: Latest(other)"),
    "unknown version": ("/v1/models/model/versions/9:predict", {"instances": [1.0]}, 404, "Servable not found for request: Specific(model, 9)"),
    "unknown label": ("/v1/models/model/labels/beta:predict", {"instances": [1.0]}, 400, "Unrecognized servable version label: beta"),
    "no JSON": ("/v1/models/model:predict", '{"instances": [1.0', 400, "JSON Parse error: Missing a comma or ] after an array element. at offset: 18"),
    "nothing": ("/v1/models/model:predict", "", 400, "JSON Parse error: The document is empty"),
    "no key": ("/v1/models/model:predict", {}, 400, "Missing 'inputs' or 'instances' key"),
    "two shapes": ("/v1/models/model:predict", {"instances": [[1.0], [1.0, 2.0]]}, 400,
                   "Failed to process element: 1 of 'instances' list. Error: INVALID_ARGUMENT: Expecting tensor size: 1 but got: 2"),
    "text": ("/v1/models/model:predict", {"instances": ["one"]}, 400,
             "Failed to process element: 0 of 'instances' list. Error: INVALID_ARGUMENT: JSON Value: \"one\" Type: String is not of expected type: float"),
    "unknown input": ("/v1/models/model:predict", {"instances": [{"z": 1.0}]}, 400,
                      "Failed to process element: 0 key: z of 'instances' list. Error: INVALID_ARGUMENT: JSON object: does not have named input: z"),
    "unknown signature": ("/v1/models/model:predict", {"signature_name": "no", "instances": [1.0]}, 400,
                          'Serving signature name: "no" not found in signature def'),
    "wrong method": ("/v1/models/model:classify", {"examples": [{"x": 1.0}]}, 400,
                     "Expected classification signature method_name to be tensorflow/serving/classify. Was: tensorflow/serving/predict"),
    "missing feature": ("/v1/models/model:regress", {"signature_name": "regress_x_to_y", "examples": [{"z": 1.0}]}, 400,
                        "Name: <unknown>, Feature: x (data type: float) is required but could not be found."),
    "unknown verb": ("/v1/models/model:explain", {}, 400, "Malformed request: POST /v1/models/model:explain"),
}  # fmt: skip


def test_what_is_wrong_is_said_in_the_server_s_words(server):
    server.version(1)
    server.start()
    for path, body, status, message in WRONG.values():
        got, answer = server.ask("POST", path, body)
        assert (got, answer["error"].partition("\n")[0]) == (status, message)
    assert server.ask("GET", "/v1/models/other") == (404, {"error": "Could not find any versions of model other"})


def test_versions_come_and_go_while_it_serves(host, server):
    """The readiness path is true as long as one is there, whatever becomes of the others."""
    ready = "/v1/models/model/metadata"
    server.version(1)
    server.start()
    server.version(2)
    until(lambda: server.states() == {"1": "END", "2": "AVAILABLE"})
    assert server.predict({"instances": [1.0]})[0] == 200

    host.check_output(f"mkdir /tmp/new/3 && touch /tmp/new/3/saved_model.pb && mv /tmp/new/3 {MODEL}/3")
    until(lambda: server.states().get("3") == "END")
    assert server.states()["2"] == "AVAILABLE"
    assert server.ask("GET", ready)[0] == 200

    host.check_output(f"rm -r {MODEL}/*")
    until(lambda: "AVAILABLE" not in server.states().values())
    assert server.ask("GET", "/v1/models/model")[0] == 200, "which is why it is not what readiness asks"
    assert server.ask("GET", ready)[0] == 404


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ("echo '<html>' >{}/saved_model.pb", "Can't parse {}/saved_model.pb as binary proto"),
        ("sed -i s/serve/train/ {}/saved_model.pb", "Could not find meta graph def matching supplied tags: {{ serve }}"),
        ("rm {}/variables/variables.data-00000-of-00001", "variables.data-00000-of-00001; no such file"),
        ("printf x >>{0}/variables/variables.index", "not an sstable (bad magic number)"),
        ("printf '\\1\\1' | dd of={}/variables/variables.data-00000-of-00001 conv=notrunc", "Checksum does not match"),
    ],
)  # fmt: skip
def test_a_broken_first_version_ends_it_with_the_reason(host, server, spoil, said):
    server.version(1)
    host.check_output(spoil.format(f"{MODEL}/1"))
    result = host.run(f"cd / && timeout 20 setpriv --reuid 1000 --regid 100 --clear-groups {START}")
    assert result.rc == 255
    assert said.format(f"{MODEL}/1") in result.stdout
    assert "Failed to start server" in result.stdout


def test_configuration_files_of_the_package_are_used(host, server):
    server.version(1)
    server.version(2)
    models = (
        'model_config_list { config { name: "model" base_path: "/home/mind/model" model_platform: "tensorflow"\n'
        '  model_version_policy { all {} } version_labels { key: "stable" value: 1 } } }'
    )
    for name, text in {
        "models.config": models,
        "batching.config": "max_batch_size { value: 32 }\nnum_batch_threads { value: 2 }",
        "monitoring.config": 'prometheus_config { enable: true path: "/monitoring/prometheus/metrics" }',
    }.items():
        host.check_output("printf %s %s >%s", "%s\\n", text, f"{MODEL}/{name}")
    server.start()
    assert server.states() == {"1": "AVAILABLE", "2": "AVAILABLE"}
    assert server.predict({"instances": [2.0]}, "/labels/stable") == (200, {"predictions": [3.0]})
    assert 'request_count{model_name="model",status="OK"}' in server.ask("GET", "/monitoring/prometheus/metrics")[1]
    assert "perform batch processing" in server.log()


@pytest.mark.parametrize("name", ["batching.config", "monitoring.config", "models.config"])
def test_a_configuration_file_that_is_none_ends_it(host, server, name):
    server.version(1)
    host.check_output(f"echo 'max_bach_size {{ value: 3 }}' >{MODEL}/{name}")
    result = host.run(f"cd / && timeout 20 setpriv --reuid 1000 --regid 100 --clear-groups {START}")
    assert result.rc == 255
    assert f"Invalid protobuf file: '{MODEL}/{name}'" in result.stdout


def test_options_are_checked_and_the_last_of_two_counts(host):
    """As in the real server a value of the wrong kind ends it, and an unknown option is named and no more."""
    server = "/usr/bin/tensorflow_model_server"
    assert host.run(f"{server} --port=many").rc == 255
    result = host.run(f"{server} --prot=1 --model_base_path=")
    assert "unknown argument: --prot=1" in result.stdout
    assert result.rc == 255
    assert "TensorFlow ModelServer" in host.check_output(f"{server} --version=false --version")
