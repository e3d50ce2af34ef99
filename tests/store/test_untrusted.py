"""Model folders and checkpoints of strangers: each loads or is refused in one line, within limits."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import forgeries
import runs
from captioner.errors import CheckpointError
from captioner.store import untrusted


def outcomes(model, stored, folder, count):
    """What became of ``count`` forgeries; fails on the first that does more than it may."""
    script = [sys.executable, str(Path(forgeries.__file__)), str(model), str(stored), str(folder)]
    environment = {**runs.environment(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*script, str(count)],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    cases = [json.loads(line) for line in done.stdout.splitlines()]
    bad = [case for case in cases if case["outcome"] not in ("refused", "captioned")]
    assert not bad, json.dumps(bad[:20], indent=1)
    assert not (folder / "canary").exists()
    print(f"slowest {max(c['seconds'] for c in cases):.1f} s, ", end="")
    print(f"largest {max(c['bytes'] for c in cases) / 1e6:.0f} MB")
    return Counter(case["outcome"] for case in cases)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "count", [30, pytest.param(2000, marks=[pytest.mark.slow, pytest.mark.timeout(7200)])]
)
def test_forged_models(count, tiny_folder, run_folder, tmp_path):
    found = outcomes(tiny_folder, run_folder / "checkpoints" / "best.ckpt", tmp_path, count)
    assert found.total() == count
    assert found["refused"] > count / 2
    assert found["captioned"] > count / 50


def test_a_file_of_too_many_tensors(tmp_path):
    file, number = tmp_path / "model.safetensors", untrusted.MAX_STORED + 1
    save_file({str(i): np.zeros(0, np.float32) for i in range(number)}, file)
    with pytest.raises(CheckpointError, match=f"' lists {number:,} tensors, expected at most "):
        untrusted.read_weights(file)
