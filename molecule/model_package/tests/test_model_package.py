"""The model folder as it would be uploaded."""

import pytest

FOLDER = "/srv/packages/smollm2/model"
MODELS = ("ensemble", "ensemble_stream")


def test_it_holds_what_triton_and_the_models_need(host):
    files = host.check_output(f"cd {FOLDER} && find . ! -type d | LC_ALL=C sort").split()
    assert files == [
        "./.package",
        "./LICENSE",
        *(f"./{model}/{file}" for model in MODELS for file in ("1/model.py", "1/words.py", "config.pbtxt")),
        "./model.gguf",
    ]


def test_the_weights_are_whole(host):
    assert host.file(f"{FOLDER}/model.gguf").size == 98362432
    assert host.check_output(f"head -c 4 {FOLDER}/model.gguf") == "GGUF"
    assert host.run(f"cd {FOLDER} && tail -n +2 .package | sha256sum --check --strict").rc == 0


def test_anybody_may_read_it_and_nobody_else_write(host):
    wrong = "-type d ! -perm 0755 -o -type f ! -perm 0644 -o -type l -o ! -user root"
    assert host.check_output(f"find {FOLDER} {wrong}") == ""


@pytest.mark.parametrize(("model", "decoupled"), [("ensemble", "false"), ("ensemble_stream", "true")])
def test_the_values_reach_the_configuration(host, model, decoupled):
    text = host.file(f"{FOLDER}/{model}/config.pbtxt").content_string
    assert f"model_transaction_policy {{ decoupled: {decoupled} }}" in text
    assert 'key: "slots" value { string_value: "3" }' in text
    assert 'key: "context" value { string_value: "2048" }' in text


def test_no_scratch_is_left(host):
    assert host.check_output("ls -A /srv/packages/smollm2") == "model"
