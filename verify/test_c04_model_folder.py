"""C4 model folder: /home/mind/model, filled by the platform."""

from typing import Any

from verify.contract import MODEL, Contract


def test_c04_the_mounted_model_is_served(contract: Contract, inside: Any) -> None:
    assert inside.mount_point(MODEL).exists
    contract.ask(contract.get("platform"))


def test_c04_the_image_brings_none_and_says_so_without(contract: Contract) -> None:
    """A model of the image's own would be hidden by the mount. Without any, it should end and say what it misses."""
    running = contract.start("bare")
    code = running.wait_end(30)
    assert code != 0, "exit code 0 without a model"
    assert MODEL in running.logs(), f"nothing about {MODEL} in: {running.last_words()}"
    assert running.files(MODEL) == ["model"]
