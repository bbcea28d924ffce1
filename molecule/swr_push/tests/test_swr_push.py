"""What the registry has after the role."""

import json
import os
from pathlib import Path

import pytest
import requests

SITE = Path(os.environ["MOLECULE_EPHEMERAL_DIRECTORY"]) / "site"
SCHEMA2 = "application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture(scope="module")
def get():
    site = json.loads((SITE / "site.json").read_text())
    lines = (SITE / "credentials").read_text().splitlines()
    user, password = (line.partition("=")[2] for line in lines)

    def ask(path):
        url = f"https://{site['registry']}/v2/molecule/pushed/{path}"
        return requests.get(
            url, headers={"Accept": SCHEMA2}, auth=(user, password), verify=site["ca_bundle"], timeout=30
        )

    return ask


def test_both_tags_name_one_image(get):
    manifests = [get(f"manifests/{tag}") for tag in ("1.0.0", "latest")]
    assert [each.headers["Content-Type"] for each in manifests] == [SCHEMA2, SCHEMA2]
    assert len({each.headers["Docker-Content-Digest"] for each in manifests}) == 1


def test_its_layers_are_there(get):
    for blob in get("manifests/1.0.0").json()["layers"]:
        assert len(get(f"blobs/{blob['digest']}").content) == blob["size"]
