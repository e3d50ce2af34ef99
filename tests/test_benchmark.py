"""The benchmark's yardsticks: a tutorial's numbers are ours, and memory is what is known to be held."""

import os
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from speed import memory, plain, training

from captioner.models.annotations import Annotations

COUNTED = os.access(memory.ANEW, os.W_OK)


@pytest.mark.parametrize("design", training.DESIGNS)
def test_a_step_is_compared_with_a_tutorial_s_of_the_same_loss(design):
    sizes = {"photos": 2, "cells": 4, "words": 40, "longest": 6}
    row = training.row(design, "cpu", 1, **sizes)  # raises where the losses differ
    assert row["L"] == 4
    if COUNTED:
        assert set(row["peak_megabytes"]) == {"plain_float32", "ours_float32", "ours_bfloat16"}
    assert all(value > 0 for value in row["milliseconds"].values())
    assert row["words"] == (training._captions(2, 40, 6)[..., 1:] != 0).sum()


def test_the_tutorial_s_layers_are_torch_s_own(monkeypatch):
    captioner, _ = training._captioner("show-attend-tell", 40)
    captions, vectors = training._captions(2, 40, 6), torch.randn(2, 4, 1280)
    monkeypatch.setattr("captioner.models.linear.linear", None)
    plain.forced(captioner, vectors, captions)
    with pytest.raises(TypeError):
        captioner(Annotations(vectors, (2, 2)), captions)


@pytest.mark.skipif(not COUNTED, reason="NO /proc/self/clear_refs: peaks are not counted here")
@pytest.mark.parametrize("megabytes", [60, 200])
def test_what_work_holds_at_most_is_counted_beside_what_was_there(megabytes):
    there = torch.ones(30_000_000)

    def work():
        large = torch.ones(megabytes * 250_000)
        del large
        torch.ones(1_000_000)

    for _ in range(2):  # what an earlier peak was does not count
        held = memory.peaks({"work": work, "nothing": there.sum})
        assert held["work"] == pytest.approx(megabytes, abs=6)
        assert held["nothing"] < 6
