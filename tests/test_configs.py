"""Every shipped YAML file parses against the real signatures, and every model in it can be built."""

import sys

import pytest
import torch
import yaml

from captioner.data.module import CaptionDataModule
from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.shipped import configs_folder
from captioner.text import START, Vocabulary
from captioner.training import run
from captioner.training.task import CaptioningTask

FILES = sorted(configs_folder().rglob("*.yaml"))
MODELS = sorted((configs_folder() / "model").glob("*.yaml"))
JOINED = sorted(configs_folder().glob("*.yaml"))


def test_all_are_found():
    assert len(FILES) == len(JOINED) + len(MODELS) + len(
        [f for f in FILES if f.parent.name in ("data", "trainer")]
    )
    assert {f.name for f in JOINED} >= {"shapes.yaml", "flickr8k.yaml", "coco.yaml"}


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_header_says_what_it_is(file):
    assert file.read_text().startswith("# ")


@pytest.mark.parametrize("file", JOINED, ids=lambda f: f.stem)
def test_joined_files_parse(file, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["captioner", "fit", "--config", str(file), "--print_config"])
    with pytest.raises(SystemExit) as stopped:
        run.main(["fit", "--config", str(file), "--print_config"])
    assert stopped.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)
    assert {"data", "model", "trainer", "seed_everything"} <= set(printed)
    assert {"callbacks", "max_epochs"} <= set(printed["trainer"])


@pytest.mark.parametrize("file", MODELS, ids=lambda f: f.stem)
def test_models_are_built_and_run(file):
    config = yaml.safe_load(file.read_text())
    captioner = Captioner.from_config(
        {part: config[part] for part in PARTS}, Vocabulary(["a", "dog"])
    )
    vectors = torch.randn(2, 4, captioner.encoder.out_dim)
    decoded = captioner(Annotations(vectors, (2, 2)), torch.full((2, 5, 3), START))
    assert decoded.logits.shape == (2, 5, 3, 6)
    assert decoded.weights.shape == (2, 5, 3, 4)


def test_the_classes_behind_the_groups_exist():
    assert CaptioningTask.__init__.__doc__ is None  # options are documented by the class
    assert "words" in (CaptioningTask.__doc__ or "")
    assert "root" in (CaptionDataModule.__doc__ or "")
