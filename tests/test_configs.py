"""Every shipped YAML file parses against the real signatures, and every model in it can be built."""

import sys

import pytest
import torch
import yaml

from captioner.data.module import CaptionDataModule
from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.models.registry import build
from captioner.shipped import configs_folder
from captioner.text import END, PAD, START, Vocabulary
from captioner.training import run
from captioner.training.task import CaptioningTask

FILES = sorted(configs_folder().rglob("*.yaml"))
MODELS = sorted((configs_folder() / "model").glob("*.yaml"))
TRAINERS = sorted((configs_folder() / "trainer").glob("*.yaml"))
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


SPOKEN = [[4, 5, 4, END], [5, END, PAD, PAD]]


@pytest.mark.parametrize("said", [SPOKEN, [[PAD, PAD]]], ids=["captions", "stand-in"])
@pytest.mark.parametrize("file", MODELS, ids=lambda f: f.stem)
def test_every_weight_gets_a_gradient(file, said):
    """Or the other processes of a training would wait for it; only zeros where nothing is said."""
    config = yaml.safe_load(file.read_text())
    refiner = build("refiner", config["refiner"], in_dim=16)
    decoder = build("decoder", config["decoder"], vocab_size=6, annotation_dim=refiner.out_dim)
    there = said is SPOKEN
    vectors = torch.randn(2, 4, 16) * there
    tokens = torch.tensor([[[START, *caption] for caption in said]] * 2)
    objective = build("objective", config["objective"])
    annotations = refiner(Annotations(vectors, (2, 2)))
    lesson = objective.lesson(decoder, annotations, tokens)
    decoded = decoder(annotations, lesson.tokens[..., :-1])
    objective(decoded, lesson.tokens[..., 1:], lesson.rewards).total.backward()
    for name, parameter in [*refiner.named_parameters(), *decoder.named_parameters()]:
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert there or not parameter.grad.any(), name


@pytest.mark.parametrize("file", TRAINERS, ids=lambda f: f.stem)
def test_every_trainer_fits_every_data_set(file, capsys):
    """In the place of the one that the configuration names."""
    given = ["fit", "--config", "configs/coco.yaml", "--trainer", str(file), "--print_config"]
    with pytest.raises(SystemExit) as stopped:
        run.main(given)
    assert stopped.value.code == 0
    printed = yaml.safe_load(capsys.readouterr().out)["trainer"]
    for name, value in yaml.safe_load(file.read_text()).items():
        if name in ("callbacks", "plugins"):
            classes = [part["class_path"].rpartition(".")[2] for part in printed[name]]
            assert classes == [part["class_path"].rpartition(".")[2] for part in value]
        else:
            assert printed[name] == value


def test_the_classes_behind_the_groups_exist():
    assert CaptioningTask.__init__.__doc__ is None  # options are documented by the class
    assert "words" in (CaptioningTask.__doc__ or "")
    assert "root" in (CaptionDataModule.__doc__ or "")
