"""Trees of names ⇄ modules, and the refusal of everything else."""

import copy
import subprocess
import sys

import pytest
import torch

from captioner.errors import ModelError
from captioner.models import Annotations, Blind, Captioner, LSTMDecoder, Projection
from captioner.models.registry import _TABLE, Component, build, names, portable
from captioner.text import Vocabulary
from captioner.training import objectives  # noqa: F401 - enters the objectives

SCORE = {"class_path": "captioner.models.Additive", "init_args": {"dim": 3}}
ATTENTION = {"class_path": "Attention", "init_args": {"score": SCORE}}
DECODER = {
    "class_path": "captioner.models.lstm.LSTMDecoder",
    "init_args": {"hidden": 6, "embedding": 4, "attention": ATTENTION},
}
SIZES = {"vocab_size": 9, "annotation_dim": 5}
WHOLE = {
    "encoder": {"class_path": "CNNEncoder", "init_args": {"image_size": 64, "weights": None}},
    "refiner": {"class_path": "captioner.models.Projection", "init_args": {"dim": 5}},
    "decoder": DECODER,
}


def shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def build_error(kind, tree, /, **sizes) -> str:
    with pytest.raises(ModelError) as caught:
        build(kind, tree, **sizes)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_tree_becomes_nested_parts_with_the_sizes_of_their_surroundings():
    decoder = build("decoder", DECODER, **SIZES)
    assert type(decoder) is LSTMDecoder
    assert decoder.attention.score.energy.weight.shape == (1, 3)
    assert decoder.attention.score.query.weight.shape == (3, 6)
    assert decoder.attention.score.key.weight.shape == (3, 5)
    assert decoder.output.weight.shape == (9, 4)


def test_a_subclass_is_known_by_name_once_defined_and_a_base_never(monkeypatch):
    monkeypatch.setitem(_TABLE, "refiner", dict(_TABLE["refiner"]))

    class Doubled(Projection):
        pass

    class Hidden(Projection, abstract=True):
        pass

    assert "Doubled" in names("refiner")
    assert "Hidden" not in names("refiner")
    assert type(build("refiner", {"class_path": "Doubled"}, in_dim=3)) is Doubled


def test_every_name_is_a_usable_class_of_its_kind():
    assert set(_TABLE) >= {"encoder", "refiner", "decoder", "attention", "score", "objective"}
    for kind, table in _TABLE.items():
        assert names(kind) == sorted(table)
        for cls in table.values():
            assert issubclass(cls, Component)
            assert cls.kind == kind
            assert cls.forward is not Component.forward


@pytest.mark.parametrize(
    ("tree", "says"),
    [
        ({"class_path": "LSTMDecode"}, "unknown decoder 'LSTMDecode'; known: LSTMDecoder"),
        (
            {"class_path": "a.b.Nonsense"},
            "unknown decoder 'Nonsense'; known: LuongDecoder, LSTMDecoder",
        ),
        ({"class_path": "Additive"}, "unknown decoder 'Additive'"),  # of another kind
        ("LSTMDecoder", "a decoder is described by {'class_path': name"),
        ({"class_path": None}, "a decoder is described by {'class_path': name"),
        ({"init_args": {}}, "a decoder is described by {'class_path': name"),
        ({"class_path": "x" * 500 + "\n"}, "unknown decoder"),
    ],
)
def test_what_is_no_decoder(tree, says):
    assert build_error("decoder", tree, **SIZES).startswith(says)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"hiden": 6}, "unknown option of LSTMDecoder 'hiden'; known: hidden"),
        ({3: 4}, "unknown option of LSTMDecoder '3'; known: "),
        (
            {"dropout": 2.0},
            "LSTMDecoder cannot be built from {'dropout': 2.0}: dropout probability",
        ),
        ({"hidden": "large"}, "LSTMDecoder cannot be built from {'hidden': 'large'}: "),
        ({"hidden": -1}, "LSTMDecoder cannot be built from {'hidden': -1}: "),
        ({"attention": "Attention"}, "LSTMDecoder cannot be built from {'attention': 'Attention'}"),
        ({"attention": {"class_path": "Attend"}}, "unknown attention 'Attend'; known: Attention"),
        ({"attention": {}}, "a attention is described by {'class_path': name"),
        ([6, 4], "init_args of LSTMDecoder must map options to values, got [6, 4]"),
        (6, "init_args of LSTMDecoder must map options to values, got 6"),
    ],
)
def test_what_is_no_option_of_it(options, says):
    message = build_error("decoder", {"class_path": "LSTMDecoder", "init_args": options}, **SIZES)
    assert message.startswith(says)
    assert "vocab_size" not in message.partition("known: ")[2]  # not the user's to give


def test_an_error_deep_inside_shows_the_options_as_given():
    wrong = copy.deepcopy(DECODER)
    wrong["init_args"]["attention"]["init_args"]["score"]["init_args"] = {"dims": 3}
    assert (
        build_error("decoder", wrong, **SIZES)
        == "unknown option of Additive 'dims'; known: dim, project"
    )
    wrong = copy.deepcopy(DECODER) | {"class_path": "LSTMDecoder"}
    wrong["init_args"]["dropout"] = 3
    assert f"from {wrong['init_args']}: " in build_error("decoder", wrong, **SIZES)


def test_a_part_without_options_says_so():
    tree = {"class_path": "Soft", "init_args": {"args": 3}}
    assert (
        build_error("distribution", tree, query_dim=8)
        == "unknown option of Soft 'args'; known: none"
    )


@pytest.mark.parametrize("name", ["os.system", "subprocess.Popen", "evil.Payload", "builtins.eval"])
@pytest.mark.parametrize("kind", ["encoder", "decoder", "score", "objective"])
def test_a_foreign_class_is_refused(kind, name):
    tree = {"class_path": name, "init_args": {"command": "true"}}
    assert f"unknown {kind} {name.rpartition('.')[2]!r}" in build_error(kind, tree)


@pytest.mark.parametrize("name", ["Payload", "Identity"])
def test_a_foreign_module_is_not_imported(name, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text("raise SystemExit('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    tree = {"class_path": f"evil_module.{name}", "init_args": {}}
    if name == "Payload":
        build_error("refiner", tree, in_dim=3)
    else:  # only the last part counts: this package's own
        assert type(build("refiner", tree, in_dim=3)).__module__ == "captioner.models.refiners"
    assert "evil_module" not in sys.modules
    module = [sys.executable, "-c", "import evil_module"]  # the trap works
    assert subprocess.run(module, cwd=tmp_path, capture_output=True).returncode == 1


def test_portable_drops_modules_and_changes_nothing_else():
    before = copy.deepcopy(DECODER)
    plain = portable(DECODER)
    assert before == DECODER
    assert plain == {
        "class_path": "LSTMDecoder",
        "init_args": {
            "hidden": 6,
            "embedding": 4,
            "attention": {
                "class_path": "Attention",
                "init_args": {"score": {"class_path": "Additive", "init_args": {"dim": 3}}},
            },
        },
    }
    assert portable(plain) == plain
    assert portable({"class_path": "a.Soft"}) == {"class_path": "Soft", "init_args": {}}
    assert shapes(build("decoder", plain, **SIZES)) == shapes(build("decoder", DECODER, **SIZES))


def test_a_captioner_passes_sizes_on_and_can_be_built_again_from_what_it_keeps():
    captioner = Captioner.from_config(WHOLE, Vocabulary(["a", "dog", "runs"]))
    assert captioner.refiner.layers[1].weight.shape == (5, 1280)
    assert captioner.decoder.output.out_features == 7
    assert "captioner." not in str(captioner.config)
    again = Captioner.from_config(captioner.config, captioner.vocabulary)
    assert shapes(again) == shapes(captioner)
    assert again.config == captioner.config

    captioner.eval()
    annotations = captioner.encode(torch.zeros(2, 3, 64, 64, dtype=torch.uint8))
    assert captioner(annotations, torch.ones(2, 4, dtype=torch.long)).logits.shape == (2, 4, 7)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"refiner": None}, "a refiner is described by"),
        ({"enkoder": WHOLE["encoder"]}, "unknown part of a captioner 'enkoder'; known: encoder"),
    ],
)
def test_a_captioner_with_wrong_parts(change, says):
    with pytest.raises(ModelError, match=says):
        Captioner.from_config(WHOLE | change, Vocabulary(["a"]))


@pytest.mark.parametrize("part", WHOLE)
def test_a_captioner_with_a_missing_part(part):
    rest = {name: tree for name, tree in WHOLE.items() if name != part}
    with pytest.raises(ModelError, match=f"has no '{part}'; it needs encoder, refiner, decoder"):
        Captioner.from_config(rest, Vocabulary(["a"]))


# The refiners, small enough to need no file of their own


def annotations(requires_grad: bool = False) -> Annotations:
    mask = torch.tensor([[True, True, False, True], [True, False, False, False]])
    return Annotations(torch.randn(2, 4, 5, requires_grad=requires_grad), (2, 2), mask)


@pytest.mark.parametrize("name", names("refiner"))
def test_a_refiner_keeps_the_regions(name):
    refiner = build("refiner", {"class_path": name}, in_dim=5).eval()
    given = annotations()
    refined = refiner(given)
    assert refined.vectors.shape == (2, 4, refiner.out_dim)
    assert refined.grid == given.grid
    assert torch.equal(refined.mask, given.mask)


def test_projection_is_the_same_for_every_region():
    refiner, given = Projection(5, 3).eval(), annotations()
    refined = refiner(given).vectors
    _, linear, _, _ = refiner.layers
    a = given.vectors[1, 2]
    normal = (a - a.mean()) / (a.var(unbiased=False) + 1e-5).sqrt()
    torch.testing.assert_close(refined[1, 2], (linear.weight @ normal + linear.bias).relu())


def test_blind_sees_the_training_mean_and_nothing_else():
    torch.manual_seed(1)
    refiner, batches = Blind(5, 3), [annotations(requires_grad=True) for _ in range(3)]
    for batch in batches:  # backward each time: the running mean must not hold the graphs
        refiner.train()(batch).vectors.sum().backward()
    mean = torch.stack([batch.mean().mean(0) for batch in batches]).mean(0)
    torch.testing.assert_close(refiner.mean, mean.detach())
    refiner.eval()
    one, two = refiner(annotations()).vectors, refiner(annotations()).vectors
    assert torch.equal(one, two)
    assert (one == one[:1, :1]).all()
