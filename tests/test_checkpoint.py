"""The model folder: what goes in comes out, and what is damaged or hostile is refused in one line."""

import json
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch

from captioner import checkpoint
from captioner.decoding import Decoding
from captioner.errors import CheckpointError
from captioner.predictor import Predictor, load


@pytest.fixture
def folder(run_folder, tmp_path):
    """A copy of a model folder, to be damaged."""
    return Path(shutil.copytree(run_folder / "model", tmp_path / "model"))


def edit(file: Path, **changes) -> None:
    content = json.loads(file.read_text())
    content.update(changes)
    file.write_text(json.dumps(content))


def refused(source: Path) -> str:
    with pytest.raises(CheckpointError) as refusal:
        checkpoint.load(source)
    message = str(refusal.value)
    assert "\n" not in message
    assert source.name in message
    return message


def test_round_trip(run_folder, tmp_path):
    """Run folder, checkpoint, model folder, and a folder exported from it hold the same model."""
    first = checkpoint.load(run_folder).captioner
    checkpoint.save(first, tmp_path / "again", card="# A card\n", decoding=Decoding(3, 20, 0.5))
    sources = [run_folder / "checkpoints" / "best.ckpt", run_folder / "model", tmp_path / "again"]
    for source in sources:
        other = checkpoint.load(source).captioner
        assert not other.training
        assert other.vocabulary == first.vocabulary
        assert other.config == first.config
        states = first.state_dict(), other.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    assert (tmp_path / "again" / "README.md").read_text() == "# A card\n"


def test_saving_replaces_a_model_folder_and_nothing_else(run_folder, folder, tmp_path):
    captioner = checkpoint.load(run_folder).captioner
    checkpoint.save(captioner, folder, card="new", decoding=Decoding())
    assert (folder / "README.md").read_text() == "new"
    other = tmp_path / "photos"
    other.mkdir()
    (other / "holiday.jpg").write_bytes(b"precious")
    with pytest.raises(CheckpointError, match="not empty and no model folder"):
        checkpoint.save(captioner, other, card="new", decoding=Decoding())
    assert (other / "holiday.jpg").read_bytes() == b"precious"
    assert {path.name for path in tmp_path.iterdir()} == {"model", "photos"}  # nothing left over


def test_a_crash_while_saving_leaves_the_old_folder(run_folder, folder, monkeypatch):
    captioner = checkpoint.load(run_folder).captioner
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_model", fails)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpoint.save(captioner, folder, card="new", decoding=Decoding())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_folder_that_cannot_be_put_in_place_leaves_the_old_one(run_folder, folder, monkeypatch):
    captioner = checkpoint.load(run_folder).captioner
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    replace = Path.replace

    def fails(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(5, "Input/output error")
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(CheckpointError, match="Input/output error"):
        checkpoint.save(captioner, folder, card="new", decoding=Decoding())
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_frozen_packaged_encoder_is_named_not_stored(folder):
    config = json.loads((folder / "config.json").read_text())
    assert config["encoder_weights"]["stored"] is False
    assert (folder / "model.safetensors").stat().st_size < 12e6
    edit(folder / "config.json", encoder_weights={"stored": False, "sha256": "0" * 64})
    assert "other encoder weights" in refused(folder)


def test_the_decoding_is_kept(run_folder, tmp_path):
    """captioner caption searches as the model was scored, whichever form it is loaded from."""
    own = Decoding(2, 7, 0.5)
    captioner = checkpoint.load(run_folder).captioner
    checkpoint.save(captioner, tmp_path / "model", card="", decoding=own)
    assert checkpoint.load(tmp_path / "model").decoding == own
    assert load(tmp_path / "model").decoding == own
    content = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    content["hyper_parameters"]["decoding"] = {"beam_size": 2, "length_penalty": 0.5}
    torch.save(content, tmp_path / "own.ckpt")
    assert checkpoint.load(tmp_path / "own.ckpt").decoding == Decoding(2, 24, 0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocabulary", None),
        ("encoder_weights", None),
        ("model", 3),
        ("decoding", {"beam": 3}),
        ("decoding", [1]),
        ("decoding", {"beam_size": 0}),
        ("preprocessing", {"width": 3}),
    ],
)
def test_a_damaged_configuration(folder, name, value):
    edit(folder / "config.json", **{name: value})
    refused(folder)


@pytest.mark.parametrize(
    "change",
    [{"name": 5}, {"image_size": "large"}, {"sizes": 3}],
)
def test_a_damaged_encoder(folder, change):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["encoder"]["init_args"].update(change)
    edit(folder / "config.json", model=config["model"])
    refused(folder)


def test_sizes_that_follow_from_other_parts_are_refused(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["decoder"]["init_args"]["vocab_size"] = 9
    edit(folder / "config.json", model=config["model"])
    assert "follows from the parts around it" in refused(folder)


@pytest.mark.parametrize("part", ["hyper_parameters", "state_dict"])
def test_a_checkpoint_of_another_shape(run_folder, tmp_path, part):
    content = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    torch.save({**content, part: [1, 2]}, tmp_path / "odd.ckpt")
    assert "no checkpoint of captioner fit" in refused(tmp_path / "odd.ckpt")


def test_a_newer_format(folder):
    edit(folder / "config.json", format_version=99)
    assert "pip install --upgrade" in refused(folder)


def test_no_format(folder):
    (folder / "config.json").write_text("{}")
    assert "format_version" in refused(folder)


@pytest.mark.parametrize("name", ["config.json", "vocab.json"])
@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "\x00\x01"])
def test_broken_json(folder, name, content):
    (folder / name).write_text(content)
    assert name in refused(folder)


def test_another_vocabulary(folder):
    words = json.loads((folder / "vocab.json").read_text())["words"]
    edit(folder / "vocab.json", words=[words[1], words[0], *words[2:]])
    assert "not the vocabulary this model was trained with" in refused(folder)
    edit(folder / "vocab.json", words=words[:-1])
    refused(folder)
    edit(folder / "vocab.json", words=[words[0], *words[:-1]])
    refused(folder)


@pytest.mark.parametrize("kept", [0, 4, 100, 5000, -1])
def test_cut_weights(folder, kept):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "model.safetensors" in refused(folder)


def test_missing_weights(folder):
    (folder / "model.safetensors").unlink()
    assert "incomplete" in refused(folder)


def test_a_header_that_claims_gigabytes(folder):
    file = folder / "model.safetensors"
    header = json.dumps({"a": {"dtype": "F32", "shape": [10**9], "data_offsets": [0, 4 * 10**9]}})
    file.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 64)
    refused(folder)
    file.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    refused(folder)


def test_weights_of_another_size(folder):
    config = json.loads((folder / "config.json").read_text())
    config["model"]["decoder"]["init_args"]["hidden"] = 32
    edit(folder / "config.json", model=config["model"])
    assert "does not fit its model" in refused(folder)


@pytest.mark.parametrize("part", ["encoder", "refiner", "decoder"])
@pytest.mark.parametrize(
    "name", ["os.system", "subprocess.Popen", "captioner.cli.main", "LSTMDecode"]
)
def test_a_foreign_class(folder, part, name):
    config = json.loads((folder / "config.json").read_text())["model"]
    config[part] = {"class_path": name, "init_args": {"command": "touch canary"}}
    edit(folder / "config.json", model=config)
    assert f"unknown {part}" in refused(folder)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
def test_a_pickle_that_would_run_code(tmp_path):
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self):
            return (Path.touch, (canary,))

    file = tmp_path / "evil.ckpt"
    torch.save({"state_dict": {}, "hyper_parameters": Attack()}, file)
    refused(file)
    file.write_bytes(pickle.dumps(Attack()))
    refused(file)
    assert not canary.exists()


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04 no zip"])
def test_no_checkpoint_at_all(tmp_path, content):
    file = tmp_path / "model.ckpt"
    file.write_bytes(content)
    refused(file)


def test_a_checkpoint_of_something_else(tmp_path):
    file = tmp_path / "other.ckpt"
    torch.save({"state_dict": {}, "epoch": 3}, file)
    assert "no checkpoint of captioner fit" in refused(file)


def test_nothing_there(tmp_path):
    assert "does not exist" in refused(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "holds no model" in refused(tmp_path / "empty")


def test_load_is_the_front_door(run_folder):
    predictor = load(run_folder, device="cpu")
    assert isinstance(predictor, Predictor)
    assert predictor.name == str(run_folder)
