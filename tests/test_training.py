"""Training as a user runs it: fit, resume, test, predict; and what a run folder holds."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from pytorch_lightning.callbacks import ModelCheckpoint

import runs
from captioner import load
from captioner.cli import main
from captioner.data.records import TEST
from captioner.errors import UsageError
from captioner.evaluation.captions import CaptionScorer
from captioner.training.checkpoints import WholeCheckpoints
from captioner.training.run import CLI

HERE = Path(__file__).parent


def same(a, b) -> bool:
    """Equal to the bit, through dictionaries and lists."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def test_fit_leaves_a_whole_run(run_folder):
    assert (run_folder / "config.yaml").is_file()
    assert {f.name for f in (run_folder / "checkpoints").iterdir()} == {"best.ckpt", "last.ckpt"}
    assert {f.name for f in (run_folder / "model").iterdir()} == {
        "config.json",
        "model.safetensors",
        "vocab.json",
        "README.md",
    }
    logs = run_folder / "logs" / "version_0"
    assert "val/cider" in (logs / "metrics.csv").read_text().splitlines()[0]
    assert list(logs.glob("events.out.tfevents.*"))
    pictures = sorted((run_folder / "overlays").iterdir())
    assert [f.name for f in pictures] == [f"val_00000{i}.png" for i in range(1, 5)]
    for file in pictures:
        with Image.open(file) as picture:
            assert len(picture.getcolors(1 << 24)) > 100
    record = json.loads((run_folder / "results" / "val-beam5.json").read_text())
    assert record["split"] == "val"
    assert record["captions"] == "generated"
    assert record["scores"]["images"] == 12
    assert record["decoding"]["beam_size"] == 5
    assert {"commit", "machine", "training_seconds", "seed"} <= record.keys()


def test_the_best_epoch_is_the_one_exported(run_folder):
    """The exported weights are those of best.ckpt, which hold the moving average."""
    from safetensors.torch import load_file

    best = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    exported = load_file(run_folder / "model" / "model.safetensors")
    assert exported
    for name, tensor in exported.items():
        assert torch.equal(tensor, best["state_dict"][f"captioner.{name}"]), name
    raw = best["current_model_state"]
    assert any(not torch.equal(t, raw[f"captioner.{n}"]) for n, t in exported.items())


def test_a_picture_that_cannot_be_drawn_does_not_cost_the_run(
    tmp_path, shapes_cache, monkeypatch, capsys, caplog
):
    """Nor one asked to go on where there is nothing yet: one command for a job started again."""
    monkeypatch.setattr("captioner.overlay.figure", lambda caption: 1 / 0)
    assert main(runs.arguments(tmp_path / "run", shapes_cache, "--ckpt_path=auto", epochs=1)) == 0
    assert load(tmp_path / "run").vocabulary
    assert "no overlays: ZeroDivisionError" in caplog.text
    assert "looked written" not in capsys.readouterr().out


def test_a_run_is_not_written_over(run_folder, shapes_cache, capsys):
    assert main(runs.arguments(run_folder, shapes_cache)) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "already holds a run" in message
    assert "--ckpt_path last" in message


def test_test_and_predict(run_folder, shapes_cache, capsys, tmp_path, monkeypatch):
    monkeypatch.setattr("captioner.training.result.CaptionScorer", CaptionScorer)  # with all it has
    own = shutil.copytree(run_folder, tmp_path / "run")  # others compare what is in that folder
    config = [f"--config={own / 'config.yaml'}", f"--trainer.default_root_dir={own}"]
    assert main(["test", *config]) == 0
    record = json.loads((own / "results" / "test-beam5.json").read_text())
    assert record["split"] == TEST
    assert record["scores"]["images"] == 8
    assert (record["scores"]["meteor"] is None) == (shutil.which("java") is None)
    assert main(["predict", *config, "--data.test_split=val", "--data.cache=false"]) == 0
    rows = json.loads((own / "results" / "val-captions.json").read_text())
    assert len({row["image_id"] for row in rows}) == 12
    # The same sentences as captioner caption writes about the same files, to the letter: uncached,
    # since float16 may tip a choice between two words that are all but equally probable.
    scenes = runs.scenes(shapes_cache)
    capsys.readouterr()
    assert main(["caption", str(scenes / "val"), "--model", str(run_folder), "--format=csv"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == [row["caption"] for row in rows]


def test_a_run_is_not_resumed_towards_another_end(run_folder, shapes_cache, capsys):
    given = runs.arguments(run_folder, shapes_cache, "--ckpt_path=last", epochs=31)
    assert main(given) == 2
    assert "with the max_epochs and batch size it began with" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("given", ["best", "file"])
def test_options_count_more_than_the_checkpoint(given, run_folder, shapes_cache):
    place = run_folder / "checkpoints" / "best.ckpt" if given == "file" else given
    config = f"--config={run_folder / 'config.yaml'}"
    assert main(["test", config, f"--ckpt_path={place}", "--model.decoding.beam_size=2"]) == 0
    record = json.loads((run_folder / "results" / "test-beam2.json").read_text())
    assert record["decoding"]["beam_size"] == 2


def test_a_broken_configuration_is_named(tmp_path, capsys):
    file = tmp_path / "broken.yaml"
    file.write_text("data: {name: [\n")
    assert main(["fit", f"--config={file}"]) == 2
    assert f"in {file}, line 2" in capsys.readouterr().err


def test_a_broken_checkpoint_is_named(run_folder, tmp_path, capsys):
    file = tmp_path / "junk.ckpt"
    file.write_bytes(b"junk")
    assert main(["test", f"--config={run_folder / 'config.yaml'}", f"--ckpt_path={file}"]) == 2
    assert "junk.ckpt' cannot be read as a checkpoint" in capsys.readouterr().err


def test_without_a_checkpoint_nothing_is_tested(tmp_path, shapes_cache, capsys):
    arguments = runs.arguments(tmp_path / "none", shapes_cache)
    assert main(["test", *arguments[1:]]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_a_checkpoint_of_another_vocabulary_is_refused(run_folder, capsys):
    config = f"--config={run_folder / 'config.yaml'}"
    assert main(["test", config, "--data.min_count=40"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "another vocabulary" in message


def test_a_checkpoint_behind_another_encoder_is_refused(run_folder, capsys):
    """The encoder is not in the checkpoint: any of the same width would load."""
    config = f"--config={run_folder / 'config.yaml'}"
    assert main(["test", config, "--model.encoder.init_args.image_size=96"]) == 2
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert "best.ckpt' was trained behind another encoder" in message


def test_what_a_preempted_job_saved_is_gone_on_from(tmp_path):
    """It is newer than the last epoch's checkpoint, or older."""
    cli = CLI.__new__(CLI)
    cli.subcommand, cli.root = "fit", tmp_path
    assert cli._checkpoint("auto") is None
    last, saved = tmp_path / "checkpoints" / "last.ckpt", tmp_path / "hpc_ckpt_2.ckpt"
    last.parent.mkdir()
    for file in (last, saved):
        file.touch()
    for now in (last, saved):
        os.utime(now, (time.time() + 9, time.time() + 9))
        assert cli._checkpoint("auto") == cli._checkpoint("last") == str(now)
        os.utime(now, (0, 0))
    with pytest.raises(UsageError, match="already holds a run"):
        cli._checkpoint(None)


def test_prepare_fills_the_cache(tmp_path, capsys):
    arguments = runs.arguments(tmp_path / "run", tmp_path / "cache")
    assert main(["prepare", *arguments[1:]]) == 0
    assert "68 pictures" in capsys.readouterr().out
    (cache,) = (tmp_path / "cache" / "annotations").iterdir()
    assert {f.name for f in cache.iterdir()} == {"00000.npy", "00000.json"}
    file = cache / "00000.npy"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert main(["prepare", *arguments[1:], "--verify=true"]) == 0
    assert "all as when they were written" in capsys.readouterr().out
    assert file.read_bytes() == whole
    assert main(["prepare", *arguments[1:], "--data.cache=images"]) == 0
    assert f"68 pictures × {runs.SIDE} × {runs.SIDE} pixels" in capsys.readouterr().out
    assert main(["prepare", *arguments[1:], "--data.cache=false"]) == 2
    assert "give --data.cache images" in capsys.readouterr().err


def learned(folder: Path) -> torch.Tensor:
    """All weights after the last epoch, in a row."""
    content = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    return torch.cat([t.flatten() for _, t in sorted(content["current_model_state"].items())])


@pytest.mark.slow
def test_uncached_training_takes_the_same_way(shapes_cache, tmp_path):
    """The cache is a matter of speed: float16 is all that it costs."""
    still = ("--model.learning_rate=1e-20", "--model.weight_decay=0")
    for name, options in {"start": still, "cached": (), "direct": ("--data.cache=false",)}.items():
        assert main(runs.arguments(tmp_path / name, shapes_cache, *options)) == 0
    start, cached, direct = (learned(tmp_path / name) for name in ("start", "cached", "direct"))
    # 0.002 as it is; 1.3 with a cache of zeros.
    assert (cached - direct).norm() < 0.02 * (cached - start).norm()


@pytest.mark.slow
def test_a_picture_alone_in_its_batch_costs_only_itself(shapes_cache, tmp_path, capsys):
    """Uncached, a broken picture is met in the middle of an epoch."""
    arguments = runs.arguments(tmp_path / "run", tmp_path / "cache", "--data.cache=false", epochs=1)
    drawing = [a for a in arguments[1:] if a != "--data.cache=false"]
    assert main(["prepare", *drawing]) == 0  # draws the scenes
    scenes = next((tmp_path / "cache" / "shapes").iterdir())
    sorted((scenes / "train").glob("*.png"))[5].write_bytes(b"broken")
    sorted((scenes / "val").glob("*.png"))[3].write_bytes(b"broken")
    (options,) = [a for a in arguments if "batch_size" in a]
    arguments[arguments.index(options)] = "--data.batch_size=1"
    assert main(arguments) == 0
    record = json.loads((tmp_path / "run" / "results" / "val-beam5.json").read_text())
    assert record["scores"]["images"] == 11
    assert record["scores"]["missing"] == 1


def test_what_is_wrong_is_said_before_the_cache_is_filled(run_folder, tmp_path, capsys):
    fresh = f"--data.cache_dir={tmp_path}"
    config = f"--config={run_folder / 'config.yaml'}"
    assert main(["test", config, fresh, "--data.min_count=40"]) == 2
    assert "another vocabulary" in capsys.readouterr().err
    assert not (tmp_path / "annotations").exists()


def start(*arguments: str) -> subprocess.Popen:
    """The command line in a process group of its own, as a terminal or a cluster starts it."""
    return subprocess.Popen(
        [sys.executable, "-m", "captioner", *arguments],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)])},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def all_equal(whole: Path, cut: Path) -> None:
    """Weights, averages, optimiser and scores of two finished runs."""
    first, second = (
        torch.load(root / "checkpoints" / "last.ckpt", weights_only=True) for root in (whole, cut)
    )
    for part in (
        "state_dict",
        "current_model_state",
        "averaging_state",
        "optimizer_states",
        "lr_schedulers",
    ):
        assert same(first[part], second[part]), part
    assert first["global_step"] == second["global_step"]
    one, two = (
        json.loads((root / "results" / "val-beam5.json").read_text())["scores"]
        for root in (whole, cut)
    )
    assert one == two
    for folder in ("checkpoints", "model", "results"):
        assert names(cut / folder) == names(whole / folder)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.slow
def test_killed_and_resumed_equals_undisturbed(tmp_path, shapes_cache):
    """kill -9 in the middle of an epoch; the same weights, bit for bit, after the restart."""

    def fit(root: Path, *more: str) -> int:
        return start(*runs.arguments(root, shapes_cache, *more, epochs=3)).wait()

    assert fit(tmp_path / "whole") == 0
    kill = [
        "--trainer.callbacks+=runs.KillAt",
        "--trainer.callbacks.epoch=1",
        "--trainer.callbacks.batch=1",
    ]
    assert fit(tmp_path / "cut", *kill) == -9
    assert fit(tmp_path / "cut", "--ckpt_path=last") == 0
    all_equal(tmp_path / "whole", tmp_path / "cut")
    # What tests the run later takes the best epoch, resumed or not.
    assert yaml.safe_load((tmp_path / "cut" / "config.yaml").read_text())["ckpt_path"] is None


@pytest.mark.slow
def test_a_checkpoint_within_an_epoch_is_gone_on_from_exactly(tmp_path, shapes_cache):
    """The batches that were learned from are not learned from again."""
    steps = [
        "--trainer.callbacks+=ModelCheckpoint",
        "--trainer.callbacks.filename=step",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks.enable_version_counter=false",
    ]
    kill = [
        "--trainer.callbacks+=runs.KillAt",
        "--trainer.callbacks.epoch=1",
        "--trainer.callbacks.batch=1",
    ]

    def fit(root: Path, *more: str) -> int:
        return start(*runs.arguments(root, shapes_cache, *steps, *more, epochs=3)).wait()

    assert fit(tmp_path / "whole") == 0
    assert fit(tmp_path / "cut", *kill) == -9
    stored = torch.load(tmp_path / "cut" / "checkpoints" / "step.ckpt", weights_only=True)
    assert stored["global_step"] % 3
    assert fit(tmp_path / "cut", f"--ckpt_path={tmp_path}/cut/checkpoints/step.ckpt") == 0
    all_equal(tmp_path / "whole", tmp_path / "cut")


def killed_at_random(begin: Callable[[], subprocess.Popen], seconds: float, times: int) -> None:
    """``kill -9`` of one process of a command, the main one or another, again and again."""
    chance = random.Random(1)
    for _ in range(times):
        main_one = begin()
        with suppress(subprocess.TimeoutExpired):
            main_one.wait(chance.uniform(0, seconds))
        children = Path(f"/proc/{main_one.pid}/task/{main_one.pid}/children")
        group = [main_one.pid, *map(int, children.read_text().split())] if children.exists() else []
        with suppress(ProcessLookupError, IndexError):
            os.kill(chance.choice(group), signal.SIGKILL)
        # Without another process the main one ends; others may wait for it longer than we do.
        main_one.wait(120)
        with suppress(ProcessLookupError):
            os.killpg(main_one.pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
@pytest.mark.parametrize("together", [(), ("--trainer.devices=2", "--trainer.strategy=ddp")])
def test_killed_ten_times_equals_undisturbed(together, tmp_path, shapes_cache):
    """At random moments of fit, from its first import to its last file."""

    def fit(root: Path) -> subprocess.Popen:
        given = [*together, "--ckpt_path=auto"]
        return start(*runs.arguments(root, shapes_cache, *given, epochs=4))

    began = time.monotonic()
    assert fit(tmp_path / "whole").wait() == 0
    killed_at_random(lambda: fit(tmp_path / "cut"), time.monotonic() - began, 10)
    assert fit(tmp_path / "cut").wait() == 0
    all_equal(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_prepare_killed_ten_times_equals_undisturbed(tmp_path):
    def prepare(name: str) -> subprocess.Popen:
        given = runs.arguments(tmp_path / "run", tmp_path / name, "--data.shapes.train=600")
        return start("prepare", *given[1:])

    began = time.monotonic()
    assert prepare("whole").wait() == 0
    killed_at_random(lambda: prepare("cut"), time.monotonic() - began, 10)
    assert prepare("cut").wait() == 0
    (whole,), (cut,) = ((tmp_path / n / "annotations").iterdir() for n in ("whole", "cut"))
    assert names(whole) == names(cut)
    for file in whole.glob("*.npy"):
        assert file.read_bytes() == (cut / file.name).read_bytes()


def test_auto_goes_on_with_a_run(run_folder, shapes_cache, capsys):
    assert main(runs.arguments(run_folder, shapes_cache, "--ckpt_path=auto", epochs=31)) == 2
    assert "the checkpoint is on its way" in capsys.readouterr().err


def test_a_checkpoint_is_whole_or_not_there(tmp_path, monkeypatch):
    """Whatever breaks while it is written, the earlier one stays, and nothing else does."""
    keeper, file = WholeCheckpoints(), tmp_path / "checkpoints" / "last.ckpt"
    keeper.save_checkpoint({"weights": torch.ones(3)}, file)

    def full(*_):
        raise OSError(28, "No space left on device")

    for place in ("captioner.training.checkpoints.os.fsync", "pathlib.Path.replace"):
        with monkeypatch.context() as patched:
            patched.setattr(place, full)
            with pytest.raises(OSError, match="No space left"):
                keeper.save_checkpoint({"weights": torch.zeros(3)}, file)
        assert names(file.parent) == ["last.ckpt"]
        assert keeper.load_checkpoint(file)["weights"].tolist() == [1, 1, 1]
    keeper.save_checkpoint({"weights": torch.zeros(3)}, file)
    assert keeper.load_checkpoint(file)["weights"].tolist() == [0, 0, 0]


def test_a_run_that_was_moved_knows_its_best_epoch(tmp_path):
    """Lightning's callback takes another path for another run, and the next epoch for the best."""
    old, new = tmp_path / "old" / "checkpoints", tmp_path / "new" / "checkpoints"

    def callback(folder):
        return ModelCheckpoint(folder, "best", monitor="val/cider", mode="max")

    before, other = callback(old), callback(tmp_path / "elsewhere")
    before.best_model_score = before.kth_value = torch.tensor(50.0)
    before.best_model_path = before.kth_best_model_path = str(old / "best.ckpt")
    before.best_k_models = {before.best_model_path: torch.tensor(50.0)}
    keeper, file = WholeCheckpoints(new), new / "last.ckpt"
    callbacks = {"best": before.state_dict(), "other": other.state_dict()}
    keeper.save_checkpoint({"callbacks": callbacks}, file)
    content = keeper.load_checkpoint(file)
    after = callback(new)
    after.load_state_dict(content["callbacks"]["best"])
    assert after.best_k_models == {str(new / "best.ckpt"): 50}
    assert after.best_model_path == after.kth_best_model_path == str(new / "best.ckpt")
    assert content["callbacks"]["other"]["dirpath"] == other.dirpath


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric")
def test_a_run_without_a_scored_epoch_keeps_its_weights(tmp_path, shapes_cache, capsys):
    assert main(runs.arguments(tmp_path, shapes_cache, "--trainer.max_steps=2")) == 0
    assert "no epoch was scored" in capsys.readouterr().out
    assert names(tmp_path / "checkpoints") == ["last.ckpt"]


@pytest.mark.slow
def test_not_every_epoch_need_be_scored(tmp_path, shapes_cache):
    """The best of those that are is kept, and early stopping waits for them."""
    more = "--trainer.check_val_every_n_epoch=2"
    assert main(runs.arguments(tmp_path, shapes_cache, more, epochs=5)) == 0
    best, last = (
        torch.load(tmp_path / "checkpoints" / f"{name}.ckpt", weights_only=True)["epoch"]
        for name in ("best", "last")
    )
    assert best in (1, 3)
    assert last == 4


@pytest.mark.slow
def test_another_seed_gives_other_weights(run_folder, tmp_path, shapes_cache):
    assert main(runs.arguments(tmp_path, shapes_cache, "--seed_everything=2")) == 0
    first, second = (
        torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
        for folder in (run_folder, tmp_path)
    )
    assert not same(first, second)


@pytest.mark.slow
def test_the_blind_model_does_not_see(tmp_path, shapes_cache, run_folder):
    """Whatever the picture, it says the same."""
    model = "--model=configs/model/image-blind.yaml"
    assert (
        main(runs.arguments(tmp_path, shapes_cache, model, "--model.decoder.init_args.hidden=64"))
        == 0
    )
    scenes = sorted((runs.scenes(shapes_cache) / "val").glob("*.png"))
    blind, seeing = (load(folder).caption(scenes) for folder in (tmp_path, run_folder))
    assert len({(c.text, c.word_log_probs) for c in blind}) == 1
    assert len({(c.text, c.word_log_probs) for c in seeing}) == len(scenes)


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model.decoder.init_args.hiden=3", "hiden"),
        ("--model.encoder.init_args.name=efficientnet_lit0", "efficientnet_lite0"),
        ("--data.name=flickr9k", "flickr8k"),
        ("--data.root=/does/not/exist", "/does/not/exist"),
        ("--data.test_split=dev", "dev"),
        ("--data.batch_size=many", "many"),
        ("--data.batch_size=0", "batch_size"),
        ("--trainer.max_epochs=-1", "max_epochs"),
        ("--trainer.precision=bf16-true", "give bf16-mixed"),
        ("--model.decoding.samples=8", "samples none"),
        ("--trainer.accelerator=cuda", "CUDA"),
        ("--ckpt_path=last", "no checkpoint"),
        ("--config=nowhere.yaml", "nowhere.yaml"),
    ],
)
def test_bad_options_are_one_line(option, said, tmp_path, shapes_cache, capsys):
    arguments = runs.arguments(tmp_path, shapes_cache)
    if option.startswith("--data.root"):
        arguments = [
            "fit",
            "--config=configs/flickr8k.yaml",
            f"--trainer.default_root_dir={tmp_path}",
        ]
    assert main([*arguments, option]) == 2
    errors = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("captioner:")
    ]
    assert len(errors) == 1
    assert said in errors[0]
