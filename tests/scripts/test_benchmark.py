"""The benchmark compares equal computations, and measures a known amount of memory."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from speed import gpu, measure, rows

from captioner.training.precision import unsupported

COUNTED = os.access(measure.RESET_PEAK, os.W_OK)


@pytest.mark.parametrize("design", rows.DESIGNS)
def test_a_training_step_has_the_loss_of_a_tutorial(design):
    options = SimpleNamespace(rounds=1, device="cpu", without=[])
    # Raises if the loss differs.
    row = rows.training(design, options, photos=2, cells=4, words=40, longest=6)
    assert row["L"] == 4
    variants = {"plain_float32", "ours_float32", "fast_off_float32"}
    if not unsupported("bf16-mixed", "cpu"):
        variants.add("ours_bfloat16")
    assert set(row["milliseconds"]) == variants
    assert set(row["peak_megabytes"]) == (variants if COUNTED else set())
    assert all(value > 0 for value in row["milliseconds"].values())


@pytest.mark.skipif(not COUNTED, reason="NO /proc/self/clear_refs: peaks cannot be measured")
@pytest.mark.parametrize("megabytes", [60, 200])
def test_the_peak_does_not_include_earlier_allocations(megabytes):
    allocated = torch.ones(30_000_000)

    def work():
        large = torch.ones(megabytes * 250_000)
        del large
        torch.ones(1_000_000)

    contestants = {"work": measure.Contestant(work), "nothing": measure.Contestant(allocated.sum)}
    for _ in range(2):  # an earlier peak does not count
        held = measure.peaks(contestants)
        assert held["work"] == pytest.approx(megabytes, abs=6)
        assert held["nothing"] < 6


def test_a_step_of_a_gpu_counts_its_operations_and_its_share_of_the_peak(monkeypatch):
    left, right = torch.ones(3, 5, requires_grad=True), torch.ones(5, 7)
    # Two operations for each product; backward, one more product for the gradient of ``left``.
    assert gpu.operations(lambda: (left @ right).sum().backward()) == 2 * 2 * 3 * 5 * 7
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H200")
    found = gpu.shares(int(66.9e12), {"float32": 2.0, "bfloat16": 0.5}, "cuda")
    assert found == pytest.approx({"float32": 0.5, "bfloat16": 0.1352}, abs=1e-4)
    assert gpu.shares(1, {"float32": 1.0}, "cpu") == {}
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "unknown")
    assert gpu.shares(1, {"float32": 1.0}, "cuda") == {}


def test_rows_of_a_gpu_on_the_cpu(monkeypatch):
    monkeypatch.setattr(gpu, "DESIGNS", ("luong-dot",))
    # Processors without bfloat16 take seconds for a step.
    monkeypatch.setattr(gpu, "PRECISIONS", {"float32": gpu.PRECISIONS["float32"]})
    [row] = gpu.training(SimpleNamespace(rounds=1, device="cpu"), photos=2, cells=4, words=40)
    assert (row["row"], row["captions"], row["L"]) == ("train luong-dot", 2 * rows.CAPTIONS, 4)
    seconds = row["milliseconds"]["float32"] / 1000
    # The times are rounded to a tenth of a millisecond.
    assert row["captions_per_second"]["float32"] == pytest.approx(
        row["captions"] / seconds, rel=0.1
    )
