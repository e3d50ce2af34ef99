"""``captioner explain``: pictures in, files out."""

import argparse
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from captioner import explain, overlay, predictor
from captioner.cli import main
from test_predictor import LOCAL, LSTM, TRANSFORMER
from test_predictor import predictor as untrained

FORMATS = ["png", "gif", "html", "json", "npz"]


@pytest.fixture
def pictures(tmp_path):
    """Two pictures of one name and a third, in two folders."""
    noise = np.random.default_rng(1).integers(0, 255, (64, 96, 3), dtype=np.uint8)
    for name in ("in/a.png", "in/more/A.jpg", "in/more/b.c.png"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise).save(file)
    return tmp_path / "in"


@pytest.fixture
def transformer(monkeypatch):
    """Stands in for whatever --model names."""
    model = untrained("TransformerDecoder", **TRANSFORMER)
    monkeypatch.setattr(predictor, "load", lambda *_: model)
    return model


def written(folder):
    return sorted(file.name for file in folder.iterdir())


def test_every_format_of_every_picture(pictures, run_folder, tmp_path, capsys):
    out = tmp_path / "new" / "out"
    command = ["explain", str(pictures), "--output", str(out), "--model", str(run_folder)]
    assert main([*command, "--formats", *FORMATS]) == 0
    assert written(out) == sorted(f"{n}.{f}" for n in ("A", "a-2", "b.c") for f in FORMATS) or (
        written(out) == sorted(f"{n}.{f}" for n in ("a", "A-2", "b.c") for f in FORMATS)
    )
    model = predictor.load(run_folder)
    for line in capsys.readouterr().out.splitlines():
        path, text, files = line.split("\t")
        told, *_ = [file for file in files.split(" ") if file.endswith(".json")]
        record = json.loads((out / told).read_text())
        assert (record["image"], record["caption"]) == (path, text)
        expected = model.caption(path)
        assert record["caption"] == expected.text
        assert record["size"] == [96, 64]
        weights = np.array([word["weights"] for word in record["words"]])
        # A photo alone and one of several: a CPU adds in another order.
        np.testing.assert_allclose(weights, expected.weights, atol=1e-5)
        stem = told.removesuffix(".json")
        with np.load(f"{stem}.npz") as stored:
            np.testing.assert_array_equal(stored["weights"], weights.astype(np.float32))
            assert list(stored["words"]) == [word["word"] for word in record["words"]]
        with Image.open(f"{stem}.gif") as film:
            assert film.n_frames == len(expected.words) + 1
        with Image.open(f"{stem}.png") as figure:
            assert figure.size == overlay.figure(expected).size
        assert expected.text in (out / f"{stem}.html").read_text("utf-8")


def test_a_given_sentence(pictures, run_folder, tmp_path):
    out = tmp_path / "out"
    command = ["explain", str(pictures / "a.png"), "--model", str(run_folder), "--output", str(out)]
    assert main([*command, "--formats", "json", "--caption", "A zebra, on the moon!"]) == 0
    record = json.loads((out / "a.json").read_text())
    assert [word["word"] for word in record["words"]] == ["a", "zebra", "on", "the", "moon"]


@pytest.mark.parametrize("sentence", [[], ["--caption", "a red circle"]])
def test_one_bad_picture_costs_that_picture(sentence, pictures, run_folder, tmp_path, capsys):
    (pictures / "a.png").write_text("no picture")
    inputs = [str(pictures), str(pictures / "missing.png")]
    out = tmp_path / "out"
    command = ["explain", *inputs, "--model", str(run_folder), "--output", str(out), *sentence]
    assert main(command) == 1
    error = capsys.readouterr().err
    assert "a.png: found text not recognisable as a picture" in error
    assert "missing.png: found no such file" in error
    assert "2 of 4 pictures could not be read" in error
    assert len(written(out)) == 4  # PNG and HTML of the other two


@pytest.mark.usefixtures("transformer")
def test_a_layer_a_head_and_earlier_words(pictures, tmp_path, transformer):
    out = tmp_path / "out"
    file = str(pictures / "a.png")
    command = ["explain", file, "--output", str(out), "--formats", "png", "json"]
    assert main([*command, "--layer", "2", "--head", "1"]) == 0
    assert written(out) == ["a.json", "a.past.png", "a.png"]
    record = json.loads((out / "a.json").read_text())
    layers = transformer.caption(file, details=True).layers
    weights = np.array([word["weights"] for word in record["words"]])
    np.testing.assert_allclose(weights, layers[:, 1, 0], atol=1e-6)
    assert record["mechanism"].endswith("MultiHead × Soft, layer 2, head 1")


def test_local_attention_can_be_explained(pictures, tmp_path, monkeypatch):
    model = untrained("LuongDecoder", **LSTM, attention=LOCAL)
    monkeypatch.setattr(predictor, "load", lambda *_: model)
    command = ["explain", str(pictures / "a.png"), "--output", str(tmp_path / "out")]
    assert main([*command, "--caption", "a red circle", "--formats", *FORMATS]) == 0


@pytest.mark.usefixtures("transformer")
@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--layer", "4"], "no layer 4: there are 3"),
        (["--layer", "0"], "no layer 0"),
        (["--head", "3"], "no head 3: there are 2"),
        (["--opacity", "2"], "0 to 1"),
        (["--opacity", "much"], "much"),
        (["--scale", "each"], "each"),
        (["--smoothing", "median"], "median"),
        (["--formats", "xml"], "xml"),
        (["--formats"], "--formats"),
        (["--caption", "?!"], "at least one word"),
        (["--beam-size", "0"], "whole number from 1"),
        (["--output", "a-file/out"], "is no folder"),
        (["--output", "a-file"], "is no folder"),
        (["--output", "in"], "would be written over"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(more, said, pictures, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("precious")
    before = (pictures / "a.png").read_bytes()
    assert main(["explain", str(pictures / "a.png"), "--output", "out", *more]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert said in error
    assert not (tmp_path / "out").exists()
    assert (tmp_path / "a-file").read_text() == "precious"
    assert (pictures / "a.png").read_bytes() == before


def test_the_defaults_are_those_of_python():
    parser = argparse.ArgumentParser()
    explain.add_arguments(parser)
    options = parser.parse_args(["--output", "x"])
    given = overlay.Style(options.opacity, options.scale, options.smoothing)
    assert given == overlay.Style()


def test_the_example_of_the_page_runs(pictures, run_folder, tmp_path, monkeypatch):
    page = Path(__file__).parents[1] / "docs" / "overlays.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "shapes").symlink_to(run_folder)
    (pictures / "a.png").rename(tmp_path / "photo.png")
    monkeypatch.chdir(tmp_path)
    exec(code, {"__name__": "example"})
    assert (tmp_path / "figure.png").is_file()
    assert (tmp_path / "third-word.png").is_file()


def test_without_output(capsys):
    assert main(["explain", "x.png"]) == 2
    assert "--output" in capsys.readouterr().err


@pytest.mark.usefixtures("transformer")
def test_files_appear_whole_or_not_at_all(pictures, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    (out / "a.png").write_text("of yesterday")

    def dies(*_, **__):
        raise KeyboardInterrupt

    command = ["explain", str(pictures / "a.png"), "--output", str(out), "--caption", "a square"]
    command += ["--formats", "png", "gif"]
    with monkeypatch.context() as patch:
        patch.setattr(overlay, "animation", dies)
        assert main(command) == 130
    assert written(out) == ["a.png"]
    assert (out / "a.png").read_text() == "of yesterday"
    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", dies)
        assert main(command) == 130
    assert written(out) == ["a.png"]
    assert main(command) == 0
    assert written(out) == ["a.gif", "a.past.png", "a.png"]


@pytest.mark.usefixtures("transformer")
def test_a_name_that_is_no_utf8_costs_nothing(pictures, tmp_path):
    odd = os.fsdecode(os.fsencode(pictures / "a") + b"\xff.png")
    try:
        (pictures / "a.png").rename(odd)
    except OSError:
        pytest.skip("THIS FILE SYSTEM KEEPS NO SUCH NAMES")
    out = tmp_path / "out"
    command = ["explain", odd, "--output", str(out), "--caption", "a square"]
    assert main([*command, "--formats", *FORMATS]) == 0
    assert len(written(out)) == 6
