"""Every shipped YAML file parses, and every design can be built and trained."""

import pytest
import torch
import yaml

import runs
from captioner.cli import training
from captioner.language.vocabulary import END, PAD, START, Vocabulary
from captioner.models.annotations import Annotations
from captioner.models.captioner import PARTS, Captioner
from captioner.models.registry import build
from captioner.resources import configs_folder
from captioner.training import run

DESIGNS = sorted((configs_folder() / "model").glob("*.yaml"))
TRAINERS = sorted((configs_folder() / "trainer").glob("*.yaml"))
JOINED = sorted(configs_folder().glob("*.yaml"))


@pytest.fixture(scope="module")
def printed():
    """Parses options and files as ``fit`` does, and returns the complete configuration."""
    parsers = []

    def stop(_, parser, __):
        parsers.append(parser)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(run.CLI, "parse_arguments", stop)
        with pytest.raises(KeyboardInterrupt):
            run.main(["fit"])
    [parser] = parsers

    def parse(*options: str) -> dict:
        config = parser.parse_args(["fit", *map(training._shipped, options)])
        return yaml.safe_load(parser.dump(config, skip_none=False))["fit"]

    return parse


def short(value):
    """The same tree with class names for class paths."""
    if isinstance(value, dict):
        cut = {key: short(inner) for key, inner in value.items()}
        return cut | {key: cut[key].rpartition(".")[2] for key in cut if key == "class_path"}
    return [short(v) for v in value] if isinstance(value, list) else value


def contains(tree, part) -> bool:
    """Whether every option of ``part`` has the same value in ``tree``."""
    if isinstance(part, dict):
        return all(contains(tree[key], value) for key, value in part.items())
    if isinstance(part, list):
        return len(tree) == len(part) and all(map(contains, tree, part))
    return tree == part


def test_joined_files_parse(printed):
    for file in JOINED:
        config = printed("--config", str(file))
        assert {"data", "model", "trainer", "seed_everything"} <= set(config)
        for part, name in yaml.safe_load(file.read_text()).items():
            expected = short(yaml.safe_load((configs_folder() / name).read_text()))
            assert contains(short(config[part]), expected), file


def test_every_trainer_fits_every_data_set(printed):
    for file in TRAINERS:
        trainer = printed("--config", "configs/coco.yaml", "--trainer", str(file))["trainer"]
        assert contains(short(trainer), short(yaml.safe_load(file.read_text()))), file
        names = [callback["class_path"].rpartition(".")[2] for callback in trainer["callbacks"]]
        assert [names[0], names[1], names[-1]] == ["ModelCheckpoint", "ModelCheckpoint", "EMA"]


def test_designs_override_the_defaults_which_are_the_base_design(printed):
    """A design without a configuration file still has the encoder and optimiser it was tuned with."""
    base = yaml.safe_load((configs_folder() / "model" / "show-attend-tell.yaml").read_text())
    assert contains(short(printed("--data.name=shapes")["model"]), short(base))
    for file in DESIGNS:
        model = printed("--config=configs/flickr8k.yaml", f"--model={file}")["model"]
        assert contains(short(model), short(runs.design(file))), file


REFERENCES = [[4, 5, 4, END], [5, END, PAD, PAD]]


@pytest.mark.parametrize("captions", [REFERENCES, [[PAD, PAD]]], ids=["captions", "stand-in"])
@pytest.mark.parametrize("file", DESIGNS, ids=lambda f: f.stem)
def test_every_weight_gets_a_gradient(file, captions):
    """Other processes of a training would wait for it. A stand-in for no image gives zeros."""
    design = runs.design(file)
    captioner = Captioner.from_config({p: design[p] for p in PARTS}, Vocabulary(["a", "dog"]))
    real = captions is REFERENCES
    vectors = torch.randn(2, 4, captioner.encoder.out_dim) * real
    tokens = torch.tensor([[[START, *caption] for caption in captions]] * 2)
    objective = build("objective", design["objective"])
    keys = captioner.encoder.key_dim
    keys = Annotations(torch.randn(2, 4, keys) * real, (2, 2)) if keys else None
    annotations = captioner.neck(Annotations(vectors, (2, 2), keys=keys))
    rollout = objective.rollout(captioner.decoder, annotations, tokens)
    decoded = captioner.decoder(annotations, rollout.tokens[..., :-1])
    assert decoded.logits.shape == (*rollout.tokens[..., 1:].shape, 6)
    assert decoded.weights.shape == (*rollout.tokens[..., 1:].shape, 4)
    objective(decoded, rollout.tokens[..., 1:], rollout.rewards).total.backward()
    for part in (captioner.neck, captioner.decoder):
        for name, parameter in part.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert real or not parameter.grad.any(), name
