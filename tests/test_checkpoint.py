"""The model folder: what goes in comes out, and what is damaged or hostile is refused in one line."""

import json
import os
import pickle
import resource
import shutil
import struct
import zipfile
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
    assert "behind another encoder" in refused(folder)


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


# ── a stranger's files ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tiny(tiny_folder, tmp_path):
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))


def reconfigured(folder: Path, part: str, **options) -> None:
    tree = json.loads((folder / "config.json").read_text())["model"]
    tree[part]["init_args"].update(options)
    edit(folder / "config.json", model=tree)


@pytest.mark.parametrize(
    "name",
    [
        "../../evil",
        "/etc/passwd",
        "timm/../../evil",
        "timm/local-dir:/tmp/evil",
        "timm/hf-hub:stranger/evil",
        "hf_hub:stranger/evil",
        "torchvision/../evil",
        "torchvision/os.system",
        "file:///tmp/evil",
        "a\nb",
        "",
    ],
)
def test_an_encoder_by_a_path_or_an_address(tiny, name, monkeypatch):
    """Names are looked up in the libraries' lists; none is a path, and nothing is fetched."""
    monkeypatch.setattr("socket.socket", None)
    reconfigured(tiny, "encoder", name=name)
    refused(tiny)


@pytest.mark.parametrize("weights", ["/tmp/evil.pth", "https://example.org/evil.pth", "../evil"])
def test_encoder_weights_by_a_path_or_an_address(tiny, weights, monkeypatch):
    monkeypatch.setattr("socket.socket", None)
    for name in ("efficientnet_lite0", "torchvision/resnet18", "timm/resnet18"):
        reconfigured(tiny, "encoder", name=name, weights=weights)
        assert "weights" in refused(tiny)


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "captioner.cli.main"])
@pytest.mark.parametrize("part", ["attention", "score", "distribution"])
def test_a_foreign_class_inside_a_part(tiny, part, name):
    foreign = {"class_path": name, "init_args": {"command": "touch canary"}}
    inner = {part: foreign} if part != "attention" else {}
    attention = {"class_path": "Attention", "init_args": inner} if inner else foreign
    reconfigured(tiny, "decoder", attention=attention)
    assert f"unknown {part}" in refused(tiny)
    reconfigured(tiny, "decoder", attention=name)
    refused(tiny)


@pytest.mark.parametrize(
    ("part", "options"),
    [
        ("decoder", {"hidden": 200_000}),
        ("decoder", {"embedding": 10**12}),
        ("decoder", {"hidden": 10**30}),
        ("refiner", {"dim": 10**9}),
        ("encoder", {"image_size": 10**6}),
        ("encoder", {"image_size": -1}),
    ],
)
def test_a_configuration_that_claims_gigabytes(tiny, part, options):
    """Refused while it is built: the memory that it would take is never touched."""
    before = peak()
    reconfigured(tiny, part, **options)
    refused(tiny)
    assert peak() - before < 1e9


def test_a_configuration_of_a_million_layers(tiny):
    tree = json.loads((tiny / "config.json").read_text())["model"]
    tree["decoder"] = {"class_path": "TransformerDecoder", "init_args": {"layers": 10**6, "dim": 8}}
    edit(tiny / "config.json", model=tree)
    assert "more parameters" in refused(tiny)


def peak() -> float:
    """The most memory that this process has had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_gigabytes_of_weights_are_refused_by_their_header(tiny):
    """A sparse file: the bytes that its header claims are there, and cost its author nothing."""
    file = tiny / "model.safetensors"
    size = 10 * 2**30
    header = json.dumps({"a": {"dtype": "F32", "shape": [size // 4], "data_offsets": [0, size]}})
    with file.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header.encode())
        stream.truncate(8 + len(header) + size)
    before = peak()
    # Torch is not asked for: the model alone has room for that many parameters now.
    assert "no such tensor" in refused(tiny)
    assert peak() - before < 1e9


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.99])
def test_a_cut_checkpoint(run_folder, tmp_path, kept):
    whole = (run_folder / "checkpoints" / "best.ckpt").read_bytes()
    (tmp_path / "cut.ckpt").write_bytes(whole[: int(kept * len(whole))])
    refused(tmp_path / "cut.ckpt")


def test_a_packed_checkpoint_is_not_unpacked(run_folder, tmp_path):
    file = tmp_path / "packed.ckpt"
    with (
        zipfile.ZipFile(run_folder / "checkpoints" / "best.ckpt") as whole,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    assert "compressed" in refused(file)


def test_a_checkpoint_whose_tensors_are_not_all_there(run_folder, tmp_path):
    """A storage of ten bytes under a tensor of many: what lies behind it in memory is not read."""
    file = tmp_path / "short.ckpt"
    with (
        zipfile.ZipFile(run_folder / "checkpoints" / "best.ckpt") as whole,
        zipfile.ZipFile(file, "w") as short,
    ):
        for entry in whole.infolist():
            data = whole.read(entry)
            short.writestr(entry.filename, data[:10] if "/data/" in entry.filename else data)
    refused(file)


@pytest.mark.parametrize("words", [["a", "\x1b[2Jred"], ["a", "two\nlines"], ["a", "\udc00"]])
def test_words_that_would_act_on_a_terminal(tiny, words):
    edit(tiny / "vocab.json", words=words)
    message = refused(tiny)
    assert "control characters" in message
    assert message.count(str(tiny)) == 1


@pytest.mark.parametrize("name", ["beam_size", "max_length", "samples"])
def test_a_decoding_without_end(tiny, name):
    edit(tiny / "config.json", decoding={name: 10**9})
    assert "up to 1000" in refused(tiny)


@pytest.mark.parametrize("name", ["config.json", "vocab.json"])
def test_json_that_is_too_deep_or_too_large(tiny, name):
    (tiny / name).write_text('{"words": ' + "[" * 100_000)
    assert name in refused(tiny)
    with (tiny / name).open("wb") as stream:
        stream.truncate(10 * 2**30)
    assert "larger than" in refused(tiny)


def test_a_tree_without_end(tiny):
    tree: dict = {"class_path": "Attention", "init_args": {}}
    for _ in range(300):
        tree = {"class_path": "Attention", "init_args": {"attention": tree, "score": tree}}
        if len(json.dumps(tree)) > 1e6:
            break
    reconfigured(tiny, "decoder", attention=tree)
    refused(tiny)


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("place", ["hyper_parameters", "state_dict", "words", "callbacks"])
def test_an_attack_anywhere_in_a_checkpoint(run_folder, tmp_path, place):
    canary = tmp_path / "canary"

    class Attack:
        def __reduce__(self):
            return (os.system, (f"touch {canary}",))

    content = torch.load(run_folder / "checkpoints" / "best.ckpt", weights_only=True)
    if place == "words":
        content["hyper_parameters"] = {**content["hyper_parameters"], "words": [Attack()]}
    else:
        content[place] = {**content[place], "decoder": Attack()}
    torch.save(content, tmp_path / "evil.ckpt")
    refused(tmp_path / "evil.ckpt")
    assert not canary.exists()
