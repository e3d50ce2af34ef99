"""Every shipped design trains on real photos, generates captions and returns attention weights."""

from pathlib import Path

import numpy as np
import pytest

import captioner
import runs
from captioner.cli.main import main
from captioner.resources import configs_folder

FILES = sorted((configs_folder() / "model").rglob("*.yaml"))
# Tests of their own train the one that starts from a trained model, and the one that needs the
# features of a detector.
OTHERS = "init_from", "RegionFeatures"
DESIGNS = [file for file in FILES if not any(name in str(runs.design(file)) for name in OTHERS)]
TRAIN, DEV, STEPS = 500, 20, 50


@pytest.fixture(scope="module")
def few_photos(shared_data, tmp_path_factory) -> Path:
    """Flickr8k with 500 training photos, in its original layout."""
    whole = shared_data / "flickr8k"
    root = tmp_path_factory.mktemp("few") / "flickr8k"
    (root / "Flickr8k_text").mkdir(parents=True)
    (root / "Flicker8k_Dataset").symlink_to(whole / "Flicker8k_Dataset")
    chosen: set[str] = set()
    for split, count in (("train", TRAIN), ("dev", DEV)):
        file = f"Flickr8k_text/Flickr_8k.{split}Images.txt"
        names = (whole / file).read_text().split()[:count]
        (root / file).write_text("\n".join(names))
        chosen.update(names)
    file = "Flickr8k_text/Flickr8k.token.txt"
    lines = (whole / file).read_text("utf-8").splitlines(True)
    captions = [line for line in lines if line.partition("#")[0] in chosen]
    (root / file).write_text("".join(captions), "utf-8")
    return root


@pytest.fixture(scope="module")
def few_cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.mark.slow
@pytest.mark.parametrize("design", DESIGNS, ids=lambda f: f.stem)
def test_a_design_trains_captions_and_explains(design, few_photos, few_cache, tmp_path):
    run = tmp_path / design.stem
    arguments = [
        *("fit", "--config=configs/flickr8k.yaml", f"--model=configs/model/{design.name}"),
        *(f"--data.root={few_photos}", f"--data.cache_dir={few_cache}"),
        *(f"--data.batch_size={TRAIN // STEPS}", f"--trainer.default_root_dir={run}"),
        *(f"--trainer.max_steps={STEPS}", "--trainer.log_every_n_steps=1"),
        "--trainer.enable_progress_bar=false",
    ]
    assert main(arguments) == 0

    losses = runs.logged(run, "train/nll")
    assert len(losses) == STEPS
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.5  # nats a word
    assert all(np.isfinite(losses))

    model = captioner.load(run)
    photos = sorted((few_photos / "Flicker8k_Dataset").glob("*.jpg"))[:4]
    for result in model.caption([str(photo) for photo in photos], details=True):
        assert result.words
        words, rows, columns = result.weights.shape
        assert (rows, columns) == ((16, 16) if design.stem == "two-stream" else (7, 7))
        assert words == len(result.words) == len(result.word_log_probs)
        sums = result.weights.sum((1, 2))
        assert ((sums > 0) & (sums < 1 + 1e-5)).all()
    forced = model.explain(str(photos[0]), "a dog runs through the grass")
    assert forced.words == ("a", "dog", "runs", "through", "the", "grass")
    assert forced.mechanism.startswith(runs.design(design)["decoder"]["class_path"])
    if "Transformer" in forced.mechanism:
        assert forced.layers is not None
        assert forced.past is not None
