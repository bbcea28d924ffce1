"""The model folder as it would be uploaded."""

import json

FOLDER = "/srv/packages/llama/model"


def test_it_holds_the_model_and_what_starts_it(host):
    files = host.check_output(f"cd {FOLDER} && find . ! -type d | LC_ALL=C sort").split()
    assert files == [
        "./.package",
        "./llama_7b/config.json",
        "./llama_7b/model-00001-of-00002.safetensors",
        "./llama_7b/model-00002-of-00002.safetensors",
        "./llama_7b/model.safetensors.index.json",
        "./llama_7b/tokenizer.model",
        "./llama_7b/tokenizer_config.json",
        "./serving/ensemble.py",
        "./serving/request_types.py",
        "./serving/serve.py",
        "./serving/settings.json",
        "./serving/templates.py",
        "./triton_serving.sh",
    ]


def test_the_weights_are_the_sources(host):
    host.check_output(f"cd {FOLDER}/llama_7b && for file in *; do cmp $file /srv/models/small-llama/$file; done")


def test_anybody_may_read_it_and_nobody_else_write(host):
    wrong = "-type d ! -perm 0755 -o -type f ! -perm -0444 -o -perm /0022 -o -type l -o ! -user root"
    assert host.check_output(f"find {FOLDER} {wrong}") == ""


def test_the_values_reach_the_start_script(host):
    settings = json.loads(host.file(f"{FOLDER}/serving/settings.json").content_string)
    assert settings["release"] == "v0.12.0"
    assert settings["fixed"] == {"triton_max_batch_size": 4, "max_beam_width": 1}
    assert settings["values"] == {"decoupled_mode": False, "kv_cache_free_gpu_mem_fraction": 0.8}
    assert "--max_batch_size 4" in " ".join(settings["engine"]["steps"][1])


def test_the_start_script_runs_on_the_systems_own_python_and_says_what_is_missing(host):
    done = host.run(f"sh {FOLDER}/triton_serving.sh --check")
    assert done.rc == 2
    assert "cannot start: /opt/modelarts-engine/trtllm/versions.json" in done.stderr
    assert host.run(f"find {FOLDER} -name __pycache__").stdout == ""


def test_no_scratch_is_left(host):
    assert host.check_output("ls -A /srv/packages/llama") == "model"
