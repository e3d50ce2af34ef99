"""Each damaged or hostile image file gives a caption or an error that names it."""

import pytest

from captioner.batch.batch_captioner import BatchCaptioner
from mutations import mutants


def checked(records, names):
    """Check that each file has one record, a caption or a one-line error; return the errors."""
    assert sorted(record["image"] for record in records) == sorted(names)
    for record in records:
        if "error" in record:
            assert record["error"]["type"] == "ImageError"
            assert record["error"]["message"].isprintable()
            assert record["image"] in record["error"]["message"]
        else:
            assert record["caption"]
    return sum("error" in record for record in records)


def written(count, folder, seed=0):
    """Write mutants into a folder and return their paths."""
    folder.mkdir()
    for name, data in mutants(count, seed):
        (folder / name).write_bytes(data)
    return [str(file) for file in folder.iterdir()]


@pytest.mark.filterwarnings("ignore:::PIL")  # Pillow warns of what it ignores
def test_some_mutants(tiny_folder, tmp_path):
    names = written(300, tmp_path / "photos")
    batches = [names[start : start + 32] for start in range(0, len(names), 32)]
    failed = checked(list(BatchCaptioner(str(tiny_folder), "cpu").rows(batches)), names)
    assert 50 < failed < 280
