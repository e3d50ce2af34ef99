"""Ray Data as the engine: the same captions, everything once, a quiet screen."""

import os
from pathlib import Path

import pytest

import libraries
from captioner.library.batch import BatchCaptioner

pytest.importorskip("ray", reason="RAY MISSING: pip install -e '.[ray]'")

BROKEN = (3, 8)


@pytest.mark.slow
def test_ray_captions_what_one_process_does(tiny_folder, tmp_path):
    """A name that is no UTF-8, Parquet, and a TMPDIR too long for sockets."""
    parquet = pytest.importorskip("pyarrow.parquet")
    folder, output = tmp_path / "photos", tmp_path / "captions"
    names = libraries.draw(folder, 40, BROKEN)
    odd = os.fsdecode(os.fsencode(folder) + b"/\xff.jpg")
    try:
        Path(odd).write_bytes(Path(names[0]).read_bytes())
        names.append(odd)
    except OSError:
        pass  # this file system keeps no such names
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
    known = BatchCaptioner(str(tiny_folder), "cpu")({"image": names})
    for name, caption, error in zip(known["image"], known["caption"], known["error"], strict=True):
        assert found[name]["caption"] == caption
        assert found[name]["error"] == error
    # Nothing is left to do: Ray is not even started.
    again = libraries.call(*arguments, *options, env=environment)
    assert again.returncode == 1
    assert "2 of" in again.stderr
