"""Training from the command line: fit, resume, test, predict, and the files of a run folder."""

import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
import yaml
from PIL import Image
from pytorch_lightning.callbacks import ModelCheckpoint
from safetensors.torch import load_file

import runs
from captioner import load
from captioner.cli.main import main
from captioner.data.records import TEST
from captioner.training.callbacks import AtomicCheckpoints

START = ("--model.init_from={}", "--trainer.default_root_dir=new")
ELSEWHERE = ("--ckpt_path={}/checkpoints/best.ckpt", "--trainer.default_root_dir=new")


def identical(a, b) -> bool:
    """Whether two structures of dictionaries, lists and tensors are equal to the bit."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(identical(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(identical, a, b))
    return a == b


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def result(root: Path, name: str = "val-beam5") -> dict:
    return json.loads((root / "results" / f"{name}.json").read_text())


def content(root: Path, name: str = "last") -> dict:
    return torch.load(root / "checkpoints" / f"{name}.ckpt", weights_only=True)


def test_fit_writes_a_complete_run(run_folder):
    assert (run_folder / "config.yaml").is_file()
    assert names(run_folder / "checkpoints") == ["best.ckpt", "last.ckpt"]
    model = ["README.md", "config.json", "model.safetensors", "vocab.json"]
    assert names(run_folder / "model") == model
    assert runs.logged(run_folder, "val/cider")
    assert list(run_folder.glob("logs/version_0/events.out.tfevents.*"))
    overlays = sorted((run_folder / "overlays").iterdir())
    assert [file.name for file in overlays] == [f"val_00000{i}.png" for i in range(1, 5)]
    for file in overlays:
        with Image.open(file) as image:
            assert len(image.getcolors(1 << 24)) > 100
    record = result(run_folder)
    assert record["split"] == "val"
    assert record["captions"] == "generated"
    assert record["scores"]["images"] == 12
    assert record["decoding"]["beam_size"] == 5
    assert {"commit", "machine", "training_seconds", "seed"} <= record.keys()


def test_the_best_epoch_is_exported(run_folder):
    """The exported weights are those of best.ckpt: the moving average."""
    best = content(run_folder, "best")
    exported = load_file(run_folder / "model" / "model.safetensors")
    assert exported
    for name, tensor in exported.items():
        assert torch.equal(tensor, best["state_dict"][f"captioner.{name}"]), name
    raw = best["current_model_state"]
    assert any(not torch.equal(t, raw[f"captioner.{n}"]) for n, t in exported.items())


def test_an_overlay_that_fails_does_not_fail_the_run(tmp_path, shapes_cache, monkeypatch, caplog):
    """``--ckpt_path=auto`` starts a run if there is none."""
    monkeypatch.setattr("captioner.predict.caption.Caption.save", lambda *_: 1 / 0)
    assert main(runs.arguments(tmp_path / "run", shapes_cache, "--ckpt_path=auto", epochs=1)) == 0
    assert load(tmp_path / "run").vocabulary
    assert "no overlays: ZeroDivisionError" in caplog.text


def test_test_and_predict(run_folder, shapes_cache, capsys, tmp_path):
    root = shutil.copytree(run_folder, tmp_path / "run")
    config = [f"--config={root / 'config.yaml'}", f"--trainer.default_root_dir={root}"]
    assert main(["test", *config, "--model.decoding.beam_size=2"]) == 0  # not the checkpoint's
    record = result(root, "test-beam2")
    assert record["split"] == TEST
    assert record["scores"]["images"] == 8
    assert record["scores"]["meteor"] is None  # without Java
    assert main(["predict", *config, "--data.test_split=val", "--data.cache=false"]) == 0
    rows = result(root, "val-captions")
    assert len({row["image_id"] for row in rows}) == 12
    # captioner caption writes the same captions. The cache is off, because its float16 can change the
    # order of two words of almost equal probability.
    scenes = runs.scenes(shapes_cache)
    capsys.readouterr()
    assert main(["caption", str(scenes / "val"), "--model", str(run_folder), "--format=csv"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert [line.split(",")[1] for line in lines] == [row["caption"] for row in rows]


@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        (
            "fit",
            ["--ckpt_path=last", "--model.decoder.init_args.hidden=32"],
            "another model.decoder",
        ),
        ("fit", [*ELSEWHERE, "--trainer.max_epochs=31"], "resume with the max_epochs and batch"),
        ("test", [*ELSEWHERE, "--data.min_count=40"], "another vocabulary"),
        ("test", [*ELSEWHERE, "--model.encoder.init_args.image_size=96"], "encoder"),
        ("fit", [*START, "--model.decoder.init_args.hidden=32"], "weights of the decoder of"),
        ("test", ["--ckpt_path=junk"], "'junk' cannot be loaded: it is damaged"),
        ("test", ["--trainer.default_root_dir=none"], "no checkpoint"),
    ],
)
def test_a_run_that_does_not_fit_is_refused(
    command, options, message, run_folder, tmp_path, refused, monkeypatch
):
    """The message has one line and comes before the cache is filled."""
    monkeypatch.chdir(tmp_path)
    Path("junk").write_bytes(b"junk")
    run = [f"--config={run_folder / 'config.yaml'}", f"--trainer.default_root_dir={run_folder}"]
    cache = [] if command == "fit" else ["--data.cache_dir=cache"]
    options = [option.format(run_folder) for option in options]
    assert message in refused(command, *run, *cache, *options)
    assert not Path("cache", "annotations").exists()


def test_prepare_fills_the_cache(tmp_path, capsys):
    def prepare(*options: str, status: int = 0) -> str:
        _, *arguments = runs.arguments(tmp_path / "run", tmp_path / "cache", *options)
        assert main(["prepare", *arguments]) == status
        captured = capsys.readouterr()
        return captured.err if status else captured.out

    assert "68 photos" in prepare()
    (cache,) = (tmp_path / "cache" / "annotations").iterdir()
    assert names(cache) == ["00000.safetensors"]
    file = cache / "00000.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert "all checksums match" in prepare("--verify=true")
    assert file.read_bytes() == whole
    assert f"68 photos × {runs.SIDE} × {runs.SIDE} pixels" in prepare("--data.cache=images")
    assert "give --data.cache images" in prepare("--data.cache=false", status=2)
    crops = prepare("--data.crop=0.7", "--data.cached_crops=2")
    assert ", and 2 crops of each training photo" in crops
    assert len(list((tmp_path / "cache" / "annotations").iterdir())) == 4


@pytest.mark.slow
def test_a_broken_image_is_skipped(shapes_cache, tmp_path):
    """Without the cache, training finds it; here it is the only image of its batch."""
    arguments = runs.arguments(tmp_path / "run", tmp_path / "cache", epochs=1)
    assert main(["prepare", *arguments[1:]]) == 0  # draws the scenes
    scenes = next((tmp_path / "cache" / "shapes").iterdir())
    sorted((scenes / "train").glob("*.png"))[5].write_bytes(b"broken")
    sorted((scenes / "val").glob("*.png"))[3].write_bytes(b"broken")
    assert main([*arguments, "--data.cache=false", "--data.batch_size=1"]) == 0
    scores = result(tmp_path / "run")["scores"]
    assert (scores["images"], scores["missing"]) == (11, 1)


def start(*arguments: str) -> subprocess.Popen:
    """Start the command line in its own process group."""
    return subprocess.Popen(
        [sys.executable, "-m", "captioner", *arguments],
        env=runs.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def all_equal(whole: Path, cut: Path) -> None:
    """Check that two finished runs have equal weights, averages, optimisers, scores and files."""
    first, second = content(whole), content(cut)
    weights = ("state_dict", "current_model_state", "averaging_state")
    for part in (*weights, "optimizer_states", "lr_schedulers", "global_step"):
        assert identical(first[part], second[part]), part
    assert result(whole)["scores"] == result(cut)["scores"]
    for folder in ("checkpoints", "model", "results"):
        assert names(cut / folder) == names(whole / folder)


@pytest.mark.parametrize(("epoch", "hint"), [(0, ""), (1, "with --ckpt_path last")])
def test_ctrl_c_says_how_to_resume(epoch, hint, tmp_path, shapes_cache, capfd):
    # pytest may have been started with SIGINT ignored, and Lightning ignores it while it ends.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    stop = ("--trainer.callbacks+=runs.Interrupt", f"--trainer.callbacks.epoch={epoch}")
    try:
        assert main(runs.arguments(tmp_path / "run", shapes_cache, *stop)) == 130
    finally:
        signal.signal(signal.SIGINT, before)
    text = capfd.readouterr().err
    resume = f": resume the run in '{tmp_path / 'run'}' {hint}" if hint else ""
    assert f"captioner: interrupted{resume}\n" in text
    assert "KeyboardInterrupt" not in text


@pytest.mark.slow
def test_resumed_within_an_epoch_equals_undisturbed(tmp_path, shapes_cache):
    options = [
        "--trainer.callbacks+=ModelCheckpoint",
        "--trainer.callbacks.filename=step",
        "--trainer.callbacks.every_n_train_steps=1",
        "--trainer.callbacks.enable_version_counter=false",
    ]

    def fit(root: Path, *more: str) -> int:
        return start(*runs.arguments(root, shapes_cache, *options, *more, epochs=3)).wait()

    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert fit(whole) == 0
    assert fit(cut, "--trainer.callbacks+=runs.Kill") == -9
    file = cut / "checkpoints" / "step.ckpt"
    assert torch.load(file, weights_only=True)["global_step"] % 3
    assert fit(cut, f"--ckpt_path={file}") == 0
    all_equal(whole, cut)
    # Otherwise captioner test would score that checkpoint instead of the best one.
    assert yaml.safe_load((cut / "config.yaml").read_text())["ckpt_path"] is None


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
@pytest.mark.parametrize("together", [(), ("--trainer.devices=2", "--trainer.strategy=ddp")])
def test_killed_ten_times_equals_undisturbed(together, tmp_path, shapes_cache):
    """SIGKILL to any of its processes at random moments, from the first import to the last file."""

    def fit(root: Path) -> subprocess.Popen:
        options = [*together, "--ckpt_path=auto"]
        return start(*runs.arguments(root, shapes_cache, *options, epochs=4))

    began = time.monotonic()
    assert fit(tmp_path / "whole").wait() == 0
    seconds, rng = time.monotonic() - began, random.Random(1)
    for _ in range(10):
        process = fit(tmp_path / "cut")
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, seconds))
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        group = [process.pid, *map(int, children.read_text().split())] if children.exists() else []
        with suppress(ProcessLookupError, IndexError):
            os.kill(rng.choice(group), signal.SIGKILL)
        process.wait(120)
        with suppress(ProcessLookupError):  # a child that waits for the killed process
            os.killpg(process.pid, signal.SIGKILL)
    assert fit(tmp_path / "cut").wait() == 0
    all_equal(tmp_path / "whole", tmp_path / "cut")


def test_a_checkpoint_that_does_not_fit_the_disk_leaves_the_earlier_one(tmp_path):
    """Torch raises a RuntimeError, which the command line would show as a traceback."""
    keeper, file = AtomicCheckpoints(tmp_path), tmp_path / "last.ckpt"
    keeper.save_checkpoint({"weights": torch.ones(3)}, file)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            keeper.save_checkpoint({"weights": torch.zeros(1_000_000)}, file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert names(tmp_path) == ["last.ckpt"]
    assert keeper.load_checkpoint(file)["weights"].tolist() == [1, 1, 1]


def test_a_run_that_was_moved_knows_its_best_epoch(tmp_path):
    """If the path differed, Lightning's callback would regard the next epoch as the best."""
    old, new = tmp_path / "old" / "checkpoints", tmp_path / "new" / "checkpoints"

    def callback(folder):
        return ModelCheckpoint(folder, "best", monitor="val/cider", mode="max")

    before, other = callback(old), callback(tmp_path / "elsewhere")
    before.best_model_score = before.kth_value = torch.tensor(50.0)
    before.best_model_path = before.kth_best_model_path = str(old / "best.ckpt")
    before.best_k_models = {before.best_model_path: torch.tensor(50.0)}
    keeper, file = AtomicCheckpoints(new), new / "last.ckpt"
    callbacks = {"best": before.state_dict(), "other": other.state_dict()}
    keeper.save_checkpoint({"callbacks": callbacks}, file)
    loaded = keeper.load_checkpoint(file)["callbacks"]
    after = callback(new)
    after.load_state_dict(loaded["best"])
    assert after.best_k_models == {str(new / "best.ckpt"): 50}
    assert after.best_model_path == after.kth_best_model_path == str(new / "best.ckpt")
    assert loaded["other"]["dirpath"] == other.dirpath


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*could not find the monitored key")
@pytest.mark.filterwarnings("ignore:Early stopping conditioned on metric")
def test_a_run_without_a_scored_epoch_keeps_its_weights(tmp_path, shapes_cache, capsys):
    seldom = "--trainer.check_val_every_n_epoch=5"
    assert main(runs.arguments(tmp_path, shapes_cache, seldom, epochs=1)) == 0
    last = f"--model {tmp_path / 'checkpoints' / 'last.ckpt'}"
    assert f"no epoch was scored: give {last}" in capsys.readouterr().out
    assert names(tmp_path / "checkpoints") == ["last.ckpt"]


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["--trainer.max_steps=2", "--trainer.max_epochs=1"])
def test_the_last_step_is_scored(limit, tmp_path, shapes_cache):
    """With few photos, a run ends before the interval of its validation."""
    interval = ["--trainer.val_check_interval=40", "--trainer.check_val_every_n_epoch=null"]
    assert main(runs.arguments(tmp_path, shapes_cache, *interval, limit)) == 0
    assert content(tmp_path, "best")["global_step"] == (2 if "steps" in limit else 3)
    assert (tmp_path / "model" / "config.json").is_file()


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--model.decoder.init_args.hiden=3", "hiden"),
        ("--model.encoder.init_args.name=efficientnet_lit0", "efficientnet_lite0"),
        ("--model.decoding.samples=8", "samples none"),
    ],
)
def test_bad_options_are_one_line(option, message, tmp_path, shapes_cache, refused):
    assert message in refused(*runs.arguments(tmp_path, shapes_cache), option)
