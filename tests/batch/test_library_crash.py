"""After ``kill -9`` at any moment, every photo has one record and no file is incomplete."""

import os
import random
import signal
import subprocess
import time

import pytest

import libraries
from captioner.batch.batch_captioner import BatchCaptioner

BROKEN = (4, 17)


def killed(command, seconds, output):
    """Kill a command some seconds after its next shard, or after its start if negative."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    before = len(list(output.glob("captions-*")))
    limit = time.monotonic() + 240
    if seconds >= 0:
        while process.poll() is None and len(list(output.glob("captions-*"))) == before:
            assert time.monotonic() < limit
            time.sleep(0.002)
    time.sleep(abs(seconds))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def survives(tmp_path, model, photos, delays, *more):
    """Kill, finish and check a run; return how many kills came before its end."""
    folder, output = tmp_path / "photos", tmp_path / "captions"
    names = libraries.draw(folder, photos, BROKEN)
    options = ["--model", model, "--device=cpu", "--batch-size=1", "--shard-size=3", *more]
    command = libraries.command(folder, *options, "--output", f"{output}/")
    kills = sum(killed(command, seconds, output) for seconds in delays)
    rows = [record["image"] for record in libraries.records(output)]
    assert len(rows) == len(set(rows))
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr[-2000:]
    libraries.whole(output, names)
    # Also one by one: rounding differs between batch sizes.
    captioner = BatchCaptioner(str(model), "cpu")
    records = {record["image"]: record for record in libraries.records(output)}
    for name in names:
        [expected] = captioner([name])
        for field in ("caption", "error"):
            assert records[name].get(field) == expected.get(field)
    return kills


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_ten_kills_at_random_moments(tiny_folder, tmp_path):
    rng = random.Random(8)
    delays = [rng.uniform(0, 0.5) for _ in range(6)] + [-rng.uniform(0, 6) for _ in range(4)]
    assert survives(tmp_path, tiny_folder, 400, delays) >= 8


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_three_kills_with_ray(tiny_folder, tmp_path):
    pytest.importorskip("ray")
    assert survives(tmp_path, tiny_folder, 400, [0.02, -8.0, 0.01], "--engine=ray") >= 2
