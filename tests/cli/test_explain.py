"""``captioner explain``: photos in, files out."""

import argparse
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import load, overlay
from captioner.cli import explain
from captioner.cli.main import main
from captioner.overlay import export
from tests.predict.test_predictor import TRANSFORMER
from tests.predict.test_predictor import predictor as untrained

FORMATS = export.names()


@pytest.fixture
def photos(tmp_path):
    """The folder of three photos; two have the same name but for case."""
    noise = np.random.default_rng(1).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    for name in ("in/a.png", "in/more/A.jpg", "in/more/b.c.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(file)
    return tmp_path / "in"


@pytest.fixture
def transformer(monkeypatch):
    """The model that any --model loads."""
    model = untrained("TransformerDecoder", **TRANSFORMER)
    monkeypatch.setattr("captioner.predict.load.load", lambda *_: model)
    return model


def files_in(folder):
    return sorted(file.name for file in folder.iterdir())


def test_every_format_of_every_photo(photos, run_folder, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    command = ["explain", str(photos), "--output", str(out), "--model", str(run_folder)]
    assert main([*command, "--formats", *FORMATS]) == 0
    assert {name.casefold() for name in files_in(out)} == {
        f"{stem}.{name}" for stem in ("a", "a-2", "b.c") for name in FORMATS
    }
    model = load(run_folder)
    for line in capsys.readouterr().out.splitlines():
        path, text, files = line.split("\t")
        json_file, *_ = [file for file in files.split(" ") if file.endswith(".json")]
        record = json.loads((out / json_file).read_text())
        assert (record["image"], record["caption"]) == (path, text)
        expected = model.caption(path)
        assert record["caption"] == expected.text
        assert record["size"] == [96, 64]
        weights = np.array([word["weights"] for word in record["words"]])
        # Batched and single photos are summed in different orders.
        np.testing.assert_allclose(weights, expected.weights, atol=1e-5)
        stem = json_file.removesuffix(".json")
        with np.load(f"{stem}.npz") as stored:
            np.testing.assert_array_equal(stored["weights"], weights.astype(np.float32))
            assert list(stored["words"]) == [word["word"] for word in record["words"]]
        with Image.open(f"{stem}.gif") as film:
            assert film.n_frames == 3 * (len(expected.words) + 1)
        with Image.open(f"{stem}.png") as figure:
            assert figure.size == overlay.figure(expected).size
        assert expected.text in (out / f"{stem}.html").read_text("utf-8")


def test_a_given_sentence(photos, run_folder, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["explain", str(photos / "a.png"), "--model", str(run_folder), "--output", str(out)]
    assert main([*command, "--formats", "json", "--caption", "A zebra, on the moon!"]) == 0
    record = json.loads((out / "a.json").read_text())
    assert [word["word"] for word in record["words"]] == ["a", "zebra", "on", "the", "moon"]
    assert "does not know 'zebra' and reads it as <unk>" in capsys.readouterr().err


@pytest.mark.parametrize("sentence", [[], ["--caption", "a red circle"]])
def test_an_unreadable_photo_is_skipped(sentence, photos, run_folder, tmp_path, capsys):
    (photos / "a.png").write_text("not a photo")
    (photos / "loop.png").symlink_to("loop.png")
    inputs = [str(photos), str(photos / "missing.png")]
    out = tmp_path / "out"
    command = ["explain", *inputs, "--model", str(run_folder), "--output", str(out), *sentence]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "a.png is not an image" in error
    assert "missing.png does not exist" in error
    assert "loop.png cannot be read" in error
    assert "3 of 5 photos could not be read" in error
    assert len(files_in(out)) == 4  # PNG and HTML of the other two photos


@pytest.mark.usefixtures("transformer")
def test_a_layer_a_head_and_earlier_words(photos, tmp_path, transformer):
    out = tmp_path / "out"
    file = str(photos / "a.png")
    command = ["explain", file, "--output", str(out), "--formats", "png", "json"]
    command += ["--model", "transformer"]
    assert main([*command, "--layer", "2", "--head", "1"]) == 0
    assert files_in(out) == ["a.json", "a.past.png", "a.png"]
    record = json.loads((out / "a.json").read_text())
    layers = transformer.caption(file, details=True).layers
    weights = np.array([word["weights"] for word in record["words"]])
    np.testing.assert_allclose(weights, layers[:, 1, 0], atol=1e-6)
    assert record["mechanism"].endswith("MultiHead × Soft, layer 2, head 1")
    assert main([*command, "--overwrite", "--layer", "4"]) == 2


def test_the_defaults_are_those_of_style():
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    options = parser.parse_args(["photo.jpg", "--output", "x"])
    given = overlay.Style(options.opacity, options.scale, options.smoothing, look=options.look)
    assert given == overlay.Style()


def test_the_example_in_the_docs_runs(photos, run_folder, tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "overlays.md"
    code = "\n".join(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "shapes").symlink_to(run_folder)
    with Image.open(photos / "a.png") as photo:
        photo.convert("RGB").save(tmp_path / "photo.jpg")
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "example"})
    assert (tmp_path / "figure.png").is_file()
    assert (tmp_path / "third-word.png").is_file()


def test_a_registered_format_is_found(photos, run_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(export.FORMATS, ".numpy", "numbers:npz_bytes")
    with pytest.raises(SystemExit):
        main(["explain", "--help"])
    assert "numpy" in capsys.readouterr().out.split("file formats:")[1].split("--")[0].split()
    out = tmp_path / "out"
    command = ["explain", str(photos / "a.png"), "--model", str(run_folder), "--output", str(out)]
    assert main([*command, "--caption", "a ring", "--formats", "numpy"]) == 0
    assert files_in(out) == ["a.numpy"]


@pytest.mark.usefixtures("transformer")
def test_files_are_written_completely_or_not_at_all(photos, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.png").write_text("old")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    command = ["explain", str(photos / "a.png"), "--output", str(out), "--caption", "a square"]
    command += ["--formats", "png", "gif", "--overwrite"]
    for target in ("captioner.overlay.gif.animation", "os.fsync"):  # while drawing, writing
        with monkeypatch.context() as patch:
            patch.setattr(target, interrupt)
            assert main(command) == 130
        assert files_in(out) == ["a.png"]
        assert (out / "a.png").read_text() == "old"
    assert main(command) == 0
    assert files_in(out) == ["a.gif", "a.past.png", "a.png"]


@pytest.mark.usefixtures("transformer")
def test_a_file_name_that_is_not_utf8(photos, tmp_path):
    odd = os.fsdecode(os.fsencode(photos / "a") + b"\xff.png")
    try:
        (photos / "a.png").rename(odd)
    except OSError:
        pytest.skip("FILE SYSTEM REFUSES NAMES THAT ARE NOT UTF-8")
    out = tmp_path / "out"
    command = ["explain", odd, "--output", str(out), "--caption", "a square"]
    assert main([*command, "--formats", *FORMATS]) == 0
    assert len(files_in(out)) == len(FORMATS) + 1  # and the attention to earlier words
