"""Two processes that share every batch give the result of one."""

import json
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import runs
from captioner import distributed
from captioner.data.dataset import CaptionDataset, Draw, EpochSampler
from captioner.data.pixels import ImageFiles
from captioner.data.records import TRAIN, Record
from captioner.errors import DataError
from captioner.language.vocabulary import PAD
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoded
from captioner.models.distributions import Choice
from captioner.models.encoder import Preprocessing
from captioner.models.neck import Blind
from captioner.training import Likelihood, Objective, Reinforce, SelfCritical

B, R, T, L, V = 7, 2, 6, 4, 9  # an odd number of images
STEPS = 3
LEAVES = ("packed_logits", "weights", "log_prob", "entropy")

OBJECTIVES = {
    "likelihood": lambda: Likelihood(0.5, 0.1),
    "moving": lambda: Reinforce(1, "moving_average", "caption", label_smoothing=0.1),
    "others": lambda: Reinforce(2, "leave_one_out", "to_go"),
    "self-critical": lambda: SelfCritical(R, "others"),
}


def batch(step: int) -> dict[str, torch.Tensor]:
    """The output of a decoder for B images, and targets: captions of one to T words."""
    random = torch.Generator().manual_seed(step)
    lengths = torch.randint(1, T + 1, (B, R), generator=random)
    lengths[::2] = lengths[::2].clamp(max=T - 2)  # the longest ones are in the second process
    valid = torch.arange(T) < lengths.unsqueeze(-1)
    return {
        "packed_logits": torch.randn(B, R, T, V, generator=random),
        "weights": torch.rand(B, R, T, L, generator=random),
        "log_prob": -torch.rand(B, R, T, generator=random),
        "entropy": torch.rand(B, R, T, generator=random),
        "targets": torch.randint(4, V, (B, R, T), generator=random).where(valid, PAD),
        "rewards": torch.randn(B, R, generator=random),
    }


def one_step(objective: Objective, images: slice, step: int) -> dict[str, torch.Tensor]:
    """Loss, terms, measures and gradients of a step on some images; zeros for the others."""
    inputs = {name: part[images] for name, part in batch(step).items()}
    words = int((inputs["targets"] != PAD).sum(-1).max())
    parts = {name: inputs[name][:, :, :words].clone().requires_grad_() for name in LEAVES}
    choice = Choice(parts["weights"], parts.pop("entropy"), parts.pop("log_prob"))
    loss = objective(
        Decoded(**parts, choice=choice), inputs["targets"][:, :, :words], inputs["rewards"]
    )
    loss.total.backward()
    results = {"total": loss.total.detach(), **loss.measures}
    results |= {name: value.detach() for name, value in loss.terms.items()}
    for name, part in parts.items():
        gradient = torch.zeros_like(batch(step)[name])
        if part.grad is not None:
            gradient[images, :, :words] = part.grad
        results[f"gradient of {name}"] = gradient
    return results


def everything(images: slice) -> dict[str, torch.Tensor]:
    """All results for these images, averaged over processes as gradients are."""
    results = {}
    for name, make in OBJECTIVES.items():
        objective = make()
        for step in range(STEPS):
            for part, value in one_step(objective, images, step).items():
                results[f"{name} {step} {part}"] = distributed.mean(value)
        results |= {f"{name} {part}": value for part, value in objective.state_dict().items()}
    blind = Blind(3, dim=2)
    for step in range(STEPS):
        vectors = torch.randn(B, L, 3, generator=torch.Generator().manual_seed(step))[images]
        blind(Annotations(vectors, (2, 2)))
        # The second process has no image, only a stand-in.
        stand_in = torch.zeros(1, L, 3)
        vectors = stand_in if distributed.rank() else vectors[:: 3 - distributed.count()]
        blind(Annotations(vectors, (2, 2)))
    return results | blind.state_dict()


def worker(rank: int, folder: str) -> None:
    """One of two processes; writes its results."""
    store = dist.FileStore(f"{folder}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    merged = distributed.merged({f"of {rank}": rank, "both": 7})
    torch.save((everything(slice(rank, None, 2)), merged), f"{folder}/{rank}.pt")
    distributed.leave()


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> list[tuple]:
    """The results of two processes."""
    folder = tmp_path_factory.mktemp("two")
    code = "import sys; from tests.training import test_distributed as t; "
    code += "t.worker(int(sys.argv[1]), sys.argv[2])"
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), str(folder)], env=runs.environment()
        )
        for rank in range(2)
    ]
    assert [process.wait(200) for process in both] == [0, 0]
    return [torch.load(folder / f"{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def one() -> dict[str, torch.Tensor]:
    """The results of a single process."""
    return everything(slice(None))


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OBJECTIVES, "mean"])
def test_losses_and_gradients_are_those_of_the_whole_batch(name, one, two):
    (first, merged), (second, _) = two
    assert merged == {"of 0": 0, "of 1": 1, "both": 7}
    keys = [key for key in one if key.startswith(name)]
    assert keys
    for key in keys:
        # A moving average that no baseline uses stays NaN.
        torch.testing.assert_close(first[key], second[key], rtol=0, atol=0, equal_nan=True, msg=key)
        close = {"rtol": 1e-5, "atol": 1e-7, "equal_nan": True}
        torch.testing.assert_close(first[key], one[key], **close, msg=key)


def orders(size: int, batch_size: int) -> list[list[list]]:
    """Two epochs of batches of a shuffled and of an ordered data set."""
    epochs = []
    for order in (EpochSampler(range(size), batch_size, 1), EpochSampler(range(size), batch_size)):
        for epoch in range(2):
            order.set_epoch(epoch)
            items = [list(item) if isinstance(item, Draw) else [item] for item in order]
            assert len(items) == len(order)
            local = order.local_batch_size
            epochs.append([items[i : i + local] for i in range(0, len(items), local)])
    return epochs


@pytest.mark.parametrize("sizes", [(12, 4), (13, 4), (15, 4), (2, 8), (1, 2), (5, 2)], ids=str)
def test_two_processes_see_the_batches_of_one(sizes, monkeypatch):
    """Every image once, in the same batch, and equally many batches for both."""
    alone, both = orders(*sizes), []
    monkeypatch.setattr(distributed, "count", lambda: 2)
    for number in range(2):
        monkeypatch.setattr(distributed, "rank", lambda number=number: number)
        both.append(orders(*sizes))
    for whole, first, second in zip(alone, *both, strict=True):
        for batch, *parts in zip(whole, first, second, strict=True):
            assert len(parts[0]) == len(parts[1])
            seen = [item for pair in zip(*parts, strict=True) for item in pair]
            assert [item for item in seen if item != [None]] == batch
            assert seen.count([None]) <= 1
    with pytest.raises(DataError, match="counts the images of all processes: 3 cannot be"):
        EpochSampler(range(9), 3)


def test_padding_of_a_batch_reads_no_image():
    record, read = Record(1, "1.png", ("a dog",), TRAIN), []

    class Source(ImageFiles):
        def __getitem__(self, path):
            read.append(path)
            return torch.zeros(3, 2, 2, dtype=torch.uint8)

    source = Source(Preprocessing(2, 2, "bilinear", (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)))
    data = CaptionDataset([record] * 3, [[[1, 2]]] * 3, source, rows=1)
    assert data.collate([data[Draw(2, 0)], data[None]]).image_ids == [1]
    assert data.collate([data[None]]).image_ids == []
    assert read == ["1.png"]


# ── Whole runs ────────────────────────────────────────────────────────────────────────────────────

# 75 and 13 images: neither fills its batches. No dropout, which each process draws for itself.
UNEVEN = ("--data.shapes.train=75", "--data.shapes.val=13", "--model.decoder.init_args.dropout=0")
TOGETHER = ("--trainer.devices=2", "--trainer.strategy=ddp")


def run(*arguments: str) -> None:
    command = [sys.executable, "-m", "captioner", *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.alone
@pytest.mark.parametrize(("objective", "epochs"), [("Likelihood", 10), ("SelfCritical", 1)])
def test_two_processes_train_like_one(objective, epochs, tmp_path, shapes_cache):
    """Losses, captions and scores are the same.

    SelfCritical trains for one epoch: later, rounding can decide which captions a beam keeps.
    """
    roots = [tmp_path / "one", tmp_path / "two"]
    options = [*UNEVEN, "--trainer.log_every_n_steps=1", f"--model.objective={objective}"]
    for root, together in zip(roots, ((), TOGETHER), strict=True):
        more = [*options, "--model.learning_rate=3e-3", *together]
        run(*runs.arguments(root, shapes_cache, *more, epochs=epochs))
        run("predict", f"--config={root / 'config.yaml'}")
    losses = [runs.logged(root, "train/loss") for root in roots]
    assert len(losses[0]) == len(set(losses[0])) == 5 * epochs
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    nll = [runs.logged(root, "val/teacher_forced_nll") for root in roots]
    assert nll[0] == pytest.approx(nll[1], abs=1e-5)
    for name, rows in (("test-captions.json", 10), ("val-beam5.images.jsonl", 13)):
        one, two = ((root / "results" / name).read_text() for root in roots)
        assert one == two
        assert len(one.splitlines()) >= rows
    captions = json.loads((roots[1] / "results" / "test-captions.json").read_text())
    assert len({row["image_id"] for row in captions}) == len(captions) == 8
    one, two = (json.loads((r / "results" / "val-beam5.json").read_text()) for r in roots)
    assert one["scores"] == two["scores"]


@pytest.mark.slow
@pytest.mark.alone
def test_hard_attention_trains_in_two_processes(tmp_path, shapes_cache):
    """Locations differ between processes, the moving average does not. One validation image for both."""
    options = [
        "--model.decoder.init_args.attention.init_args.distribution={class_path: Hard}",
        "--model.objective=Reinforce",
        *("--data.shapes.train=17", "--data.shapes.val=1", "--trainer.log_every_n_steps=1"),
    ]
    run(*runs.arguments(tmp_path, shapes_cache, *options, *TOGETHER))
    assert len(runs.logged(tmp_path, "train/baseline")) == 4
    content = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert content["state_dict"]["objective.average"] < 0
