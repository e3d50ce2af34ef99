"""Model folders and checkpoints: round trips; damaged and hostile files give one-line errors."""

import json
import math
import os
import shutil
import zipfile
from pathlib import Path

import pytest
import torch

from captioner import __version__
from captioner.cli.main import main
from captioner.errors import CheckpointError
from captioner.predict.load import load
from captioner.search.options import Decoding
from captioner.store import checkpoint


@pytest.fixture
def folder(run_folder, tmp_path):
    """A copy of a model folder, to be damaged."""
    return Path(shutil.copytree(run_folder / "model", tmp_path / "model"))


@pytest.fixture
def tiny(tiny_folder, tmp_path):
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))


def edit(file: Path, **changes) -> None:
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps(content))


def reconfigure(folder: Path, part: str, **options) -> None:
    tree = json.loads((folder / "config.json").read_text())["model"]
    tree[part]["init_args"].update(options)
    edit(folder / "config.json", model=tree)


def refused(source: Path) -> str:
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.load(source)
    message = str(refusal.value)
    assert "\n" not in message
    assert source.name in message
    return message


def same_weights(source, expected):
    one, two = (checkpoint.load(path).captioner.state_dict() for path in (source, expected))
    assert one
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in one)


def read(run_folder) -> dict:
    """The content of the run's checkpoint."""
    return torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)


def test_round_trip(run_folder, tmp_path):
    """Run folder, checkpoint, model folder, and a folder exported from it hold the same model."""
    first = checkpoint.load(run_folder).captioner
    checkpoint.save(first, tmp_path / "again", card="# A card\n", decoding=Decoding(3, 20, 0.5))
    sources = [run_folder / "checkpoints" / "best.ckpt", run_folder / "model", tmp_path / "again"]
    for source in sources:
        other = checkpoint.load(source).captioner
        assert not other.training
        assert other.vocabulary.words == first.vocabulary.words
        assert other.config == first.config
        same_weights(source, run_folder)
    assert (tmp_path / "again" / "README.md").read_text() == "# A card\n"
    assert load(tmp_path / "again").decoding == Decoding(3, 20, 0.5)


def test_saving_replaces_a_model_folder_and_nothing_else(run_folder, folder, tmp_path):
    captioner = checkpoint.load(run_folder).captioner
    checkpoint.save(captioner, folder, card="new", decoding=Decoding())
    assert (folder / "README.md").read_text() == "new"
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(CheckpointError, match="not empty and not a model folder"):
        checkpoint.save(captioner, other, card="new", decoding=Decoding())
    assert (other / "holiday.jpg").read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "photos"}  # nothing left over


@pytest.mark.parametrize("failing", ["save_model", "replace"])
def test_a_failed_save_leaves_the_old_folder(run_folder, folder, monkeypatch, failing):
    captioner = checkpoint.load(run_folder).captioner
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    replace = Path.replace

    def fail(*arguments):
        if failing == "save_model" or arguments[0].name == "new":
            raise OSError(28, "No space left on device")
        return replace(*arguments)

    monkeypatch.setattr(checkpoint if failing == "save_model" else Path, failing, fail)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(captioner, folder, card="new", decoding=Decoding())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_frozen_packaged_encoder_is_named_not_stored(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["encoder_weights"]["stored"] is False
    assert (folder / "model.safetensors").stat().st_size < 12e6
    edit(folder / "config.json", encoder_weights={"stored": False, "sha256": "0" * 64})
    assert "with another encoder" in refused(folder)


def test_the_decoding_of_a_checkpoint_is_kept(run_folder, tmp_path):
    content = read(run_folder)
    content["hyper_parameters"]["decoding"] = {"beam_size": 2, "length_penalty": 0.5}
    torch.save(content, tmp_path / "other.ckpt")
    assert load(tmp_path / "other.ckpt").decoding == Decoding(2, 24, 0.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocabulary": None}, "cannot be loaded: TypeError"),
        ({"encoder_weights": {}}, "cannot be loaded: KeyError: 'sha256'"),
        ({"model": 3}, "cannot be loaded"),
        ({"decoding": {"length_penalty": math.nan}}, "length_penalty must be a number"),
        ({"format_version": 1}, f"format_version 1, this captioner ({__version__}) reads 2: give"),
        ({"format_version": 99}, "pip install --upgrade"),
    ],
    ids=str,
)
def test_a_damaged_configuration(tiny, changes, message):
    edit(tiny / "config.json", **changes)
    assert message in refused(tiny)


def test_options_that_do_not_fit(tiny):
    """Unknown options, values of other types, and sizes other than those of the weights."""
    whole = (tiny / "config.json").read_text()
    for part, options, message in (
        ("encoder", {"sizes": 3}, "unknown option"),
        ("encoder", {"image_size": "large"}, "CNNEncoder"),
        ("decoder", {"vocab_size": 9}, "unknown option of LSTMDecoder 'vocab_size'"),
        ("decoder", {"hidden": 32}, "size mismatch for decoder."),
        ("decoder", {"hidden": None}, "cannot be built"),
        ("decoder", {"attention": {"class_path": 3}}, "a attention is described by"),
    ):
        reconfigure(tiny, part, **options)
        assert message in refused(tiny)
        (tiny / "config.json").write_text(whole)


def test_nothing_to_load(tmp_path, tiny):
    assert "or give an existing path" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refused(tmp_path / "empty")
    (tiny / "model.safetensors").unlink()
    assert "model.safetensors' is missing or no file: copy the whole folder" in refused(tiny)
    (tmp_path / "model.ckpt").write_bytes(b"text")
    assert "give a complete file of captioner fit" in refused(tmp_path / "model.ckpt")


def test_damaged_files(tiny):
    """Text files that are no JSON objects, words that cannot be shown, and weights that are cut."""
    for name, content in (
        *((name, text) for name in ("config.json", "vocab.json") for text in ("{", "[]", "\0\xff")),
        ("vocab.json", '{"words": [3]}'),
        ("vocab.json", '{"words": ["\\u001b[2Jred", "two"]}'),  # would clear a terminal
        ("model.safetensors", "text"),
    ):
        before = (tiny / name).read_bytes()
        (tiny / name).write_text(content, "latin-1")
        refused(tiny)
        (tiny / name).write_bytes(before)
    weights = tiny / "model.safetensors"
    for cut in (7, 100, weights.stat().st_size // 2):
        whole = weights.read_bytes()
        weights.write_bytes(whole[:cut])
        assert "SafetensorError" in refused(tiny)
        weights.write_bytes(whole)


def test_another_vocabulary(folder):
    words = json.loads((folder / "vocab.json").read_text())["words"]
    edit(folder / "vocab.json", words=[words[1], words[0], *words[2:]])
    assert "not the vocabulary this model was trained with" in refused(folder)


def test_an_encoder_or_weights_by_a_path_or_an_address(tiny, monkeypatch):
    """Names are looked up in lists of the libraries, and nothing is downloaded."""
    monkeypatch.setattr("socket.socket", None)
    evil = ("../../evil", "/etc/passwd", "timm/../../evil", "timm/local-dir:/tmp/evil", "a\nb", "")
    remote = ("timm/hf-hub:stranger/evil", "hf_hub:stranger/evil", "file:///tmp/evil")
    for name in (*evil, *remote, "torchvision/../evil", "torchvision/os.system"):
        reconfigure(tiny, "encoder", name=name)
        refused(tiny)
    for weights in ("/tmp/evil.pth", "https://example.org/evil.pth"):
        for name in ("efficientnet_lite0", "torchvision/resnet18", "timm/resnet18"):
            reconfigure(tiny, "encoder", name=name, weights=weights)
            assert "weights" in refused(tiny)


@pytest.mark.parametrize("name", ["os.system", "captioner.cli.main.main", "LSTMDecode"])
def test_a_class_that_is_not_in_the_table(tiny, name):
    foreign = {"class_path": name, "init_args": {"command": "touch canary"}}
    whole = json.loads((tiny / "config.json").read_text())["model"]
    for part in ("encoder", "neck", "decoder"):
        edit(tiny / "config.json", model={**whole, part: foreign})
        assert f"unknown {part}" in refused(tiny)
    edit(tiny / "config.json", model=whole)
    for part in ("score", "distribution"):
        inner = {"class_path": "Attention", "init_args": {part: foreign}}
        reconfigure(tiny, "decoder", attention=inner)
        assert f"unknown {part}" in refused(tiny)
    for attention in (foreign, name):
        reconfigure(tiny, "decoder", attention=attention)
        refused(tiny)


class Payload:
    """Pickled as a call that writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch '{self.file}'",)


def test_a_checkpoint_runs_no_code(run_folder, tmp_path):
    canary = tmp_path / "canary"
    content = read(run_folder)
    content["hyper_parameters"]["decoding"] = Payload(canary)
    torch.save(content, tmp_path / "evil.ckpt")
    assert "which could run code" in refused(tmp_path / "evil.ckpt")
    assert not canary.exists()
    torch.load(tmp_path / "evil.ckpt", weights_only=False)  # the payload works
    assert canary.exists()


def test_damaged_checkpoints(run_folder, tmp_path):
    """A storage of ten bytes for a larger tensor must not expose the memory behind it."""
    best = run_folder / "checkpoints" / "best.ckpt"
    with (
        zipfile.ZipFile(best) as whole,
        zipfile.ZipFile(tmp_path / "short.ckpt", "w") as other,
    ):
        for entry in whole.infolist():
            data = whole.read(entry)
            other.writestr(entry.filename, data[:10] if "/data/" in entry.filename else data)
    refused(tmp_path / "short.ckpt")
    (tmp_path / "cut.ckpt").write_bytes(best.read_bytes()[:10_000])
    refused(tmp_path / "cut.ckpt")
    for changes in ({"state_dict": {}}, {"state_dict": 3}, {"hyper_parameters": {"words": ["a"]}}):
        torch.save(read(run_folder) | changes, tmp_path / "other.ckpt")
        refused(tmp_path / "other.ckpt")


def test_links_are_neither_read_nor_exported(tiny, tmp_path, capsys):
    (tmp_path / "secret").write_text("the secret")
    options = ["--model", str(tiny)]
    for name in ("README.md", "vocab.json", "config.json", "model.safetensors"):
        (tiny / name).rename(tmp_path / name)
        (tiny / name).symlink_to(tmp_path / ("secret" if name == "README.md" else name))
        assert main(["export", str(tmp_path / "exported"), *options]) == 2
        assert f"{name}' is a link" in capsys.readouterr().err
        (tiny / name).unlink()
        (tmp_path / name).rename(tiny / name)
    assert main(["export", str(tmp_path / "exported"), *options]) == 0
