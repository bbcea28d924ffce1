"""C10 size: image up to 50 GB, image and model up to 30 GB in a public pool."""

from verify.contract import GB, Contract


def test_c10_image(contract: Contract) -> None:
    assert contract.attributes["Size"] <= 50 * GB, (
        f"the image has {contract.attributes['Size'] / GB:.1f} GB, 50 are allowed"
    )


def test_c10_image_and_model(contract: Contract) -> None:
    image, model = contract.attributes["Size"], contract.model_bytes()
    assert image + model <= 30 * GB, (
        f"image {image / GB:.1f} GB and model {model / GB:.1f} GB, 30 together fit a public pool"
    )
