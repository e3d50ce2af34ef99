"""Two processes that share every batch learn, measure and say what one would."""

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import runs
from captioner import cli, processes
from captioner.data.dataset import CaptionDataset, Variation
from captioner.data.order import Draw, InOrder, Shuffled
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded
from captioner.models.refiners import Blind
from captioner.text import PAD
from captioner.training import run as run_module
from captioner.training.lower_bound import LowerBound
from captioner.training.objectives import Likelihood, Objective
from captioner.training.self_critical import SelfCritical

HERE = Path(__file__).parent
B, R, T, L, V = 7, 2, 6, 4, 9  # an odd number of pictures
STEPS = 3

OBJECTIVES = {
    "likelihood": lambda: Likelihood(0.5, 0.1),
    "moving": lambda: LowerBound(1, "moving_average", "caption", label_smoothing=0.1),
    "per step": lambda: LowerBound(2, "per_step", "to_go"),
    "others": lambda: LowerBound(2, "leave_one_out", "to_go"),
    "self-critical": lambda: SelfCritical(R, "others"),
}


def batch(step: int) -> dict[str, torch.Tensor]:
    """What a decoder said of B pictures, and what it was to say: captions of one to T words."""
    random = torch.Generator().manual_seed(step)
    lengths = torch.randint(1, T + 1, (B, R), generator=random)
    # The first of two processes never sees the longest.
    lengths[::2] = lengths[::2].clamp(max=T - 2)
    there = torch.arange(T) < lengths.unsqueeze(-1)
    return {
        "said": torch.randn(B, R, T, V, generator=random),
        "weights": torch.rand(B, R, T, L, generator=random),
        "log_prob": -torch.rand(B, R, T, generator=random),
        "entropy": torch.rand(B, R, T, generator=random),
        "targets": torch.randint(4, V, (B, R, T), generator=random).where(there, PAD),
        "rewards": torch.randn(B, R, generator=random),
    }


def learned(objective: Objective, pictures: slice, step: int) -> dict[str, torch.Tensor]:
    """Loss, terms, measures and gradients of a step on these pictures; the others' are zeros."""
    given = {name: part[pictures] for name, part in batch(step).items()}
    words = int((given["targets"] != PAD).sum(-1).max())
    leaves = ("said", "weights", "log_prob", "entropy")
    parts = {name: given[name][:, :, :words].clone().requires_grad_() for name in leaves}
    decoded = Decoded(**parts)
    loss = objective(decoded, given["targets"][:, :, :words], given["rewards"])
    loss.total.backward()
    found = {"total": loss.total.detach(), **loss.terms, **loss.measures}
    found = {name: value.detach() for name, value in found.items()}
    for name, part in parts.items():
        gradient = torch.zeros_like(batch(step)[name])
        if part.grad is not None:
            gradient[pictures, :, :words] = part.grad
        found[f"gradient of {name}"] = gradient
    return found


def everything(pictures: slice) -> dict[str, torch.Tensor]:
    """What the processes compute together of their pictures: means over them, as gradients are."""
    found = {}
    for name, make in OBJECTIVES.items():
        objective = make()
        for step in range(STEPS):
            for part, value in learned(objective, pictures, step).items():
                found[f"{name} {step} {part}"] = processes.mean(value)
        for part, value in objective.state_dict().items():
            found[f"{name} {part}"] = value
    blind = Blind(3, 2)
    for step in range(STEPS):
        vectors = torch.randn(B, L, 3, generator=torch.Generator().manual_seed(step))[pictures]
        blind(Annotations(vectors, (2, 2)))
        # The second process without pictures.
        vectors = torch.zeros(1, L, 3) if processes.rank() else vectors[:: 3 - processes.count()]
        blind(Annotations(vectors, (2, 2)))
    return found | blind.state_dict()


def dealt(size: int, batch_size: int) -> list[list[list]]:
    """Two epochs of batches, each place as a list, of a shuffled and of an ordered data set."""
    found = []
    for order in (Shuffled(range(size), batch_size, 1), InOrder(range(size), batch_size)):
        for epoch in range(2):
            order.set_epoch(epoch)
            places = [list(p) if isinstance(p, Draw) else [p] for p in order]
            assert len(places) == len(order)
            found.append([places[i : i + order.own] for i in range(0, len(places), order.own)])
    return found


SIZES = [(12, 4), (13, 4), (15, 4), (2, 8), (1, 2), (5, 2)]


def worker(rank: int, folder: str) -> None:
    """One of two processes; writes what it found."""
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    found = everything(slice(rank, None, 2))
    orders = [dealt(*size) for size in SIZES]
    try:
        InOrder(range(9), 3)
        said = ""
    except DataError as error:
        said = str(error)
    merged = processes.merged({f"of {rank}": rank, "both": 7})
    torch.save((found, orders, said, merged), f"{folder}/{rank}.pt")
    processes.leave()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[tuple]:
    """What two processes found."""
    folder = tmp_path_factory.mktemp("two")
    code = "import sys, test_processes; test_processes.worker(int(sys.argv[1]), sys.argv[2])"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        )
        for rank in range(2)
    ]
    assert [process.wait(200) for process in both] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def one() -> dict[str, torch.Tensor]:
    """What a single process finds."""
    return everything(slice(None))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OBJECTIVES, "mean"])
def test_losses_and_gradients_are_those_of_the_whole_batch(name, one, two):
    """Sums over unequally many words, divided as if they were one sum; and baselines that agree."""
    (first, *_), (second, *_) = two
    of_it = [key for key in one if key.startswith(name)]
    assert of_it
    for key in of_it:
        assert torch.equal(first[key], second[key]), key
        torch.testing.assert_close(first[key], one[key], rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("number", range(len(SIZES)), ids=str)
def test_two_processes_see_the_batches_of_one(number, two):
    """Every picture once, with the same seed, in the same batch; and none waits for the other."""
    for one, first, second in zip(
        dealt(*SIZES[number]), two[0][1][number], two[1][1][number], strict=True
    ):
        assert len(one) == len(first) == len(second)
        for whole, *parts in zip(one, first, second, strict=True):
            assert len(parts[0]) == len(parts[1])
            seen = [place for pair in zip(*parts, strict=True) for place in pair]
            assert [place for place in seen if place != [None]] == whole
            assert seen.count([None]) <= 1


def test_a_batch_that_cannot_be_divided_is_refused(two):
    for _, _, said, _ in two:
        assert said.startswith("data.batch_size is that of all processes together: 3 cannot be")


def test_all_know_what_any_has(two):
    for *_, merged in two:
        assert merged == {"of 0": 0, "of 1": 1, "both": 7}


def test_an_empty_place_holds_no_picture():
    record = Record(1, "1.png", ("a dog",), TRAIN)
    asked = []

    def source(path):
        asked.append(path)
        return torch.zeros(3, 2, 2, dtype=torch.uint8)

    data = CaptionDataset([record] * 3, [[[1, 2]]] * 3, source, (0, 0), 1, Variation())
    assert data.collate(data.__getitems__([2, None])).image_ids == [1]
    assert data.collate(data.__getitems__([None])).image_ids == []
    assert asked == ["1.png"]


def test_alone_nothing_is_asked():
    values = torch.tensor([1.0, 0.0])
    assert (processes.count(), processes.rank()) == (1, 0)
    assert processes.mean(values) is processes.total(values) is values
    assert processes.share(values).tolist() == [1.0, 1.0]
    assert processes.merged({1: 2}) == {1: 2}


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_ends_what_torch_would_keep_to_the_end_of_python(fails, tmp_path, monkeypatch):
    """Not after an error, when another process may be gone."""

    def run_alone(_arguments: list[str]) -> None:
        store = dist.FileStore(str(tmp_path / "store"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        if fails:
            raise DataError("no pictures")

    monkeypatch.setattr(run_module, "main", run_alone)
    try:
        assert cli.main(["fit"]) == (2 if fails else 0)
        assert dist.is_initialized() == fails
    finally:
        processes.leave()
    assert not dist.is_initialized()
    processes.leave()


# ── Whole runs ────────────────────────────────────────────────────────────────────────────────────

# 75 pictures and 13: neither comes out even. No dropout, whose draws are each process's own.
UNEVEN = ("--data.shapes.train=75", "--data.shapes.val=13", "--model.decoder.init_args.dropout=0")
TOGETHER = ("--trainer.devices=2", "--trainer.strategy=ddp")


def run(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "captioner", *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def curve(root: Path, name: str) -> list[float]:
    with (root / "logs" / "version_0" / "metrics.csv").open() as file:
        return [float(row[name]) for row in csv.DictReader(file) if row[name]]


def captions(root: Path, split: str) -> dict:
    rows = json.loads((root / "results" / f"{split}-captions.json").read_text())
    assert len({row["image_id"] for row in rows}) == len(rows)
    return {row["image_id"]: row["caption"] for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize(("objective", "epochs"), [("Likelihood", 10), ("SelfCritical", 2)])
def test_two_processes_learn_what_one_does(objective, epochs, tmp_path, shapes_cache):
    """The same loss at every step, the same development loss, the same captions.

    The captions that SelfCritical learns from are a beam's: no draw is in it.
    """
    roots = [tmp_path / "one", tmp_path / "two"]
    given = [*UNEVEN, "--trainer.log_every_n_steps=1", f"--model.objective={objective}"]
    for root, together in zip(roots, ((), TOGETHER), strict=True):
        options = [*given, "--model.learning_rate=3e-3", *together]
        run(*runs.arguments(root, shapes_cache, *options, epochs=epochs))
        run("predict", f"--config={root / 'config.yaml'}")
    one, two = (curve(root, "train/loss") for root in roots)
    assert len(one) == len(two) == 5 * epochs
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-5
    assert len(set(one)) == len(one)
    one, two = (curve(root, "val/teacher_forced_nll") for root in roots)
    assert max(abs(a - b) for a, b in zip(one, two, strict=True)) < 1e-5
    one, two = (captions(root, "test") for root in roots)
    assert list(one.items()) == list(two.items())
    assert len(one) == 8
    results = [root / "results" for root in roots]
    one, two = ((r / "val-beam5.images.jsonl").read_text() for r in results)
    assert one == two
    assert len(one.splitlines()) == 13
    one, two = (json.loads((r / "val-beam5.json").read_text())["scores"] for r in results)
    assert one == two


@pytest.mark.slow
def test_hard_attention_learns_in_two_processes(tmp_path, shapes_cache):
    """Each process draws its own locations; their baselines are one. More processes than pictures."""
    hard = "{class_path: Hard}"
    options = [
        "--model.decoder.init_args.attention.init_args.distribution=" + hard,
        *("--model.objective=LowerBound", "--model.objective.init_args.baseline=per_step"),
        *("--data.shapes.train=17", "--data.shapes.val=1", "--trainer.log_every_n_steps=1"),
    ]
    run(*runs.arguments(tmp_path, shapes_cache, *options, *TOGETHER))
    assert len(curve(tmp_path, "train/baseline")) == 4
    content = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["state_dict"]["objective.means"].count_nonzero() > 3
