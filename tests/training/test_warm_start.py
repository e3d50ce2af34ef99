"""Starting from another model: words of another vocabulary, and parts that do not fit."""

import pytest
import torch

import runs
from captioner.cli.main import main
from captioner.data.module import CaptionDataModule
from captioner.errors import UsageError
from captioner.language.vocabulary import SPECIALS
from captioner.search.options import Decoding
from captioner.store import checkpoint
from captioner.training.warm_start import start_from

OLD = ["a", "dog", "cat", "runs"]
NEW = ["runs", "zebra", "a", "okapi"]
ROWS = ("embedding.weight", "output.weight", "output.bias")


def stored(folder, words=OLD, **options):
    """A stored model whose weights are all different."""
    model = runs.small_captioner(words, **options)
    with torch.no_grad():
        for parameter in model.decoder.parameters():
            parameter.normal_(3.0, 2.0)
    checkpoint.save(model, folder, "# Old", Decoding())
    return model, str(folder)


HARD = {"class_path": "Attention", "init_args": {"distribution": {"class_path": "Hard"}}}


@pytest.mark.parametrize(
    ("decoder", "options"),
    [
        ("LSTMDecoder", {}),
        ("LuongDecoder", {"attention": HARD}),  # from a soft one
        ("TransformerDecoder", {}),
    ],
)
def test_rows_of_known_words_are_equal_to_the_bit(decoder, options, tmp_path):
    old, name = stored(tmp_path / "old", decoder=decoder)
    new = runs.small_captioner(NEW, decoder=decoder, **options)
    before = {key: tensor.clone() for key, tensor in new.decoder.state_dict().items()}
    _, summary = start_from(new, name)
    assert summary == f"started from '{name}': 2 words copied, 2 new, 2 dropped"
    given, taken = old.decoder.state_dict(), new.decoder.state_dict()
    for word in (*SPECIALS, "a", "runs"):
        here, there = new.vocabulary.words.index(word), old.vocabulary.words.index(word)
        for key in ROWS:
            assert torch.equal(taken[key][here], given[key][there]), (key, word)
    for word in ("zebra", "okapi"):
        index = new.vocabulary.words.index(word)
        assert not torch.equal(taken["output.bias"][index], before["output.bias"][index]), word
    for key in given.keys() - set(ROWS):
        assert torch.equal(taken[key], given[key]), key


def test_new_rows_have_the_mean_and_the_spread_of_the_old_words(tmp_path):
    old, name = stored(tmp_path / "old", [f"old{i}" for i in range(40)], embedding=6)
    new = runs.small_captioner([f"new{i}" for i in range(4000)], embedding=6)
    start_from(new, name)
    for key in ROWS:
        known = old.decoder.state_dict()[key][len(SPECIALS) :]
        drawn = new.decoder.state_dict()[key][len(SPECIALS) :]
        spread = known.std(0, correction=0)
        # Six standard errors of a mean and of a standard deviation.
        assert ((drawn.mean(0) - known.mean(0)).abs() < 6 * spread / 4000**0.5).all(), key
        assert ((drawn.std(0) - spread).abs() < 6 * spread / 8000**0.5).all(), key


def test_weights_of_other_shapes_are_refused_or_left_out(tmp_path, caplog):
    old, name = stored(tmp_path / "old", hidden=8, embedding=8)
    wide = runs.small_captioner(OLD, hidden=12, embedding=8)
    with pytest.raises(UsageError, match=r"decoder of .*\(\d+ × \d+, here \d+ × \d+\).*_mismatch"):
        start_from(wide, name)
    own = wide.decoder.state_dict()["embedding.weight"].clone()
    _, summary = start_from(wide, name, "skip")
    assert "weights that do not fit: decoder." in summary
    assert not torch.equal(own, wide.decoder.state_dict()["embedding.weight"])
    assert torch.equal(
        old.decoder.state_dict()["embedding.weight"], wide.decoder.state_dict()["embedding.weight"]
    )
    for key, tensor in old.neck.state_dict().items():
        assert torch.equal(tensor, wide.neck.state_dict()[key]), key

    fine = runs.small_captioner(OLD, hidden=8, embedding=8, size=96)
    with pytest.raises(UsageError, match=r"encoder: encoder\.image_size is 64, here 96; give"):
        start_from(fine, name)
    start_from(fine, name, "skip")
    assert "another encoder" in caplog.text


def test_the_vocabulary_of_a_model_can_be_kept(tmp_path):
    _, name = stored(tmp_path / "old", ["zebra", "red", "okapi"])
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.jpg").touch()
    (tmp_path / "train" / "a.txt").write_text("a red kite\na red boat\na kite\n")
    data = CaptionDataModule("folder", str(tmp_path), min_count=2, keep_vocabulary=name)
    assert data.words == ["zebra", "red", "okapi", "a", "kite"]


def test_fit_starts_from_a_model_of_other_words(run_folder, shapes_cache, tmp_path, capsys):
    start = (f"--model.init_from={run_folder}", "--data.min_count=40", "--overlays=0")
    assert main(runs.arguments(tmp_path / "new", shapes_cache, *start, epochs=1)) == 0
    out = capsys.readouterr().out
    assert f"started from '{run_folder}': " in out
    assert " 0 new, " in out
    assert " 0 dropped" not in out
