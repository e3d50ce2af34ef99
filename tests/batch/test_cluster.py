"""Ray Data as the engine: the same captions, every photo once, no output of Ray."""

import os
from pathlib import Path

import pytest

import libraries
from captioner.batch.batch_captioner import BatchCaptioner

pytest.importorskip("ray", reason="RAY MISSING: pip install -e '.[ray]'")

BROKEN = (3, 8)


@pytest.mark.slow
def test_ray_gives_the_captions_of_one_process(tiny_folder, tmp_path):
    """With Parquet, a file name that is not UTF-8, and a TMPDIR too long for sockets."""
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, output = tmp_path / "photos", tmp_path / "captions"
    names = libraries.draw(folder, 40, BROKEN)
    odd = os.fsdecode(os.fsencode(folder) + b"/\xff.jpg")
    try:
        Path(odd).write_bytes(Path(names[0]).read_bytes())
        names.append(odd)
    except OSError:
        pass  # this file system does not allow such names
    temporary = tmp_path / ("long" * 30)
    temporary.mkdir()
    arguments = [folder, "--model", tiny_folder, "--batch-size=4", "--output", output]
    environment = {"TMPDIR": str(temporary)}
    options = ["--engine=ray", "--format=parquet", "--shard-size=16", "--workers=1"]
    done = libraries.call(*arguments, *options, env=environment)
    assert done.returncode == 1, done.stderr
    assert all(line.startswith("captioner: ") for line in done.stderr.splitlines()), done.stderr
    assert len(done.stderr.splitlines()) == 3
    assert done.stdout.splitlines() == [f"{len(names) - 2} captions in {output}"]
    shards = sorted(output.glob("*.parquet"))
    assert len(shards) == 3
    found = {row["image"]: row for shard in shards for row in parquet.read_table(shard).to_pylist()}
    assert libraries.manifest(output)["images"] == len(found) == len(names)
    expected = BatchCaptioner(str(tiny_folder), "cpu")(names)
    for row in expected:
        for field in ("caption", "error"):
            assert found[row["image"]][field] == row.get(field)
    # Nothing is left to do, so Ray is not started.
    again = libraries.call(*arguments, *options, env=environment)
    assert again.returncode == 1
    assert "2 of" in again.stderr
