"""Configuration trees become modules; everything else is refused."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import captioner
from captioner import training  # noqa: F401 - registers the objectives
from captioner.errors import ModelError
from captioner.language.vocabulary import Vocabulary
from captioner.models import Captioner, LSTMDecoder, Projection
from captioner.models.registry import _TABLE, build, names

SCORE = {"class_path": "captioner.models.Additive", "init_args": {"dim": 3}}
ATTENTION = {"class_path": "Attention", "init_args": {"score": SCORE}}
DECODER = {
    "class_path": "captioner.models.lstm.LSTMDecoder",
    "init_args": {"hidden": 6, "embedding": 4, "attention": ATTENTION},
}
SIZES = {"vocab_size": 9, "annotation_dim": 5}
WHOLE = {
    "encoder": {"class_path": "CNNEncoder", "init_args": {"image_size": 64, "weights": None}},
    "neck": {"class_path": "captioner.models.Projection", "init_args": {"dim": 5}},
    "decoder": DECODER,
}


def shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def test_a_tree_becomes_nested_parts_with_their_sizes():
    decoder = build("decoder", DECODER, **SIZES)
    assert type(decoder) is LSTMDecoder
    assert decoder.attention.score.energy.weight.shape == (1, 3)
    assert decoder.attention.score.query.weight.shape == (3, 6)
    assert decoder.attention.score.key.weight.shape == (3, 5)
    assert decoder.output.weight.shape == (9, 4)


def test_a_subclass_is_registered_unless_it_is_abstract(monkeypatch):
    monkeypatch.setitem(_TABLE, "neck", dict(_TABLE["neck"]))

    class Doubled(Projection):
        pass

    class Hidden(Projection, abstract=True):
        pass

    assert "Doubled" in names("neck")
    assert "Hidden" not in names("neck")
    assert type(build("neck", {"class_path": "Doubled"}, in_dim=3)) is Doubled
    again = type("Doubled", (Projection,), {"__module__": __name__})  # a notebook's cell, run twice
    assert type(build("neck", {"class_path": "Doubled"}, in_dim=3)) is again


def test_two_classes_of_one_name_are_refused():
    with pytest.raises(ModelError, match="two classes of the kind neck are named Projection"):
        type("Projection", (Projection,), {"__module__": "elsewhere"})
    assert build("neck", {"class_path": "Projection"}, in_dim=3).__module__ == Projection.__module__


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("LSTMDecoder", "a decoder is described by {'class_path': name"),
        ({"class_path": "LSTMDecode"}, "unknown decoder 'LSTMDecode'; known: LSTMDecoder"),
        ({"init_args": {"hiden": 6}}, "unknown option of LSTMDecoder 'hiden'; known: hidden"),
        ({"init_args": {"vocab_size": 6}}, "unknown option of LSTMDecoder 'vocab_size'"),
        (
            {"init_args": {"hidden": "large"}},
            "LSTMDecoder cannot be built from {'hidden': 'large'}: ",
        ),
        ({"init_args": [6, 4]}, "init_args of LSTMDecoder must map options to values"),
        (
            {"init_args": {"attention": {"class_path": "Attend"}}},
            "unknown attention 'Attend'; known: Attention",
        ),
    ],
)
def test_wrong_trees_are_refused(tree, message):
    whole = {"class_path": "LSTMDecoder", **tree} if isinstance(tree, dict) else tree
    with pytest.raises(ModelError) as caught:
        build("decoder", whole, **SIZES)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_class_in_a_new_file_of_the_package_is_found(tmp_path):
    """The package imports every module in its folder; no other file has to change."""
    package = Path(captioner.__file__).parent
    shutil.copytree(package, tmp_path / "captioner", ignore=shutil.ignore_patterns("pretrained"))
    file = tmp_path / "captioner" / "models" / "dotted.py"
    file.write_text("from captioner.models.scores import Dot\n\n\nclass Dotted(Dot): ...\n")
    code = "import captioner.models.registry as r; assert 'Dotted' in r.names('score')"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path, env=environment)


@pytest.mark.parametrize("name", ["Payload", "Identity"])
def test_a_foreign_module_is_not_imported(name, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = {"class_path": f"evil_module.{name}", "init_args": {}}
    if name == "Payload":
        with pytest.raises(ModelError):
            build("neck", tree, in_dim=3)
    else:  # only the last part counts: this package's own
        assert type(build("neck", tree, in_dim=3)).__module__ == "captioner.models.neck"
    assert "evil_module" not in sys.modules
    module = [sys.executable, "-c", "import evil_module"]  # the trap works
    assert subprocess.run(module, cwd=tmp_path, capture_output=True).returncode == 1


def test_a_captioner_can_be_rebuilt_from_its_configuration():
    captioner = Captioner.from_config(WHOLE, Vocabulary(["a", "dog", "runs"]))
    assert captioner.neck.layers[1].weight.shape == (5, 1280)
    assert captioner.decoder.output.out_features == 7
    assert "captioner." not in str(captioner.config)
    again = Captioner.from_config(captioner.config, captioner.vocabulary)
    assert shapes(again) == shapes(captioner)
    assert again.config == captioner.config
    with pytest.raises(ModelError, match="expected the parts encoder, neck, decoder"):
        Captioner.from_config({"encoder": {}, "decoder": {}}, captioner.vocabulary)
