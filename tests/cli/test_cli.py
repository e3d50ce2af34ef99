"""The command line and the Python API on images."""

import csv
import io
import json
import os
import re
import select
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import captioner
import runs
from captioner.cli.main import main
from captioner.errors import UsageError
from captioner.photos.geometry import Geometry
from captioner.predict import predictor
from captioner.store import checkpoint


@pytest.fixture(scope="session")
def model(run_folder):
    return captioner.load(run_folder)


@pytest.fixture
def images(shapes_cache, run_folder, tmp_path):
    """A folder of five images, 0.png to 4.png, and a broken one between them."""
    folder = tmp_path / "images"
    folder.mkdir()
    scenes = sorted(runs.scenes(shapes_cache).glob("val/*.png"))[:5]
    for number, scene in enumerate(scenes):
        Image.open(scene).resize((50 + 10 * number, 64)).save(folder / f"{number}.png")
    (folder / "2-broken.jpg").write_text("not an image")
    return folder


def test_images_that_cannot_be_read_do_not_affect_the_others(images, run_folder, capsys):
    inputs = [str(images), str(images / "missing.png")]
    assert main(["caption", *inputs, "--model", str(run_folder), "--format=jsonl"]) == 1
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    names = [record["image"] for record in records]
    assert names == [*sorted(map(str, images.iterdir())), inputs[1]]
    broken, missing = [record for record in records if "error" in record]
    assert broken["error"]["type"] == "ImageError"
    assert "2-broken.jpg" in broken["error"]["message"]
    assert "missing.png does not exist" in missing["error"]["message"]
    assert "2 of 7 photos" in captured.err
    fields = {"image", "caption", "words", "log_prob", "word_log_probs", "model"}
    for record in records:
        if "error" not in record:
            assert set(record) == fields
            assert record["caption"]
            assert len(record["words"]) == len(record["word_log_probs"])


@pytest.mark.parametrize("to_file", [True, False])
def test_a_file_name_that_is_not_utf8(to_file, images, run_folder, capsys, tmp_path):
    odd = os.fsdecode(os.fsencode(images / "0") + b"\xff.png")
    try:
        (images / "0.png").rename(odd)
    except OSError:
        pytest.skip("THIS FILE SYSTEM DOES NOT ALLOW SUCH NAMES")
    (images / "2-broken.jpg").unlink()
    output = ["--output", str(tmp_path / "out.txt")] if to_file else []
    for form in ("text", "jsonl", "csv", "coco"):
        command = ["caption", str(images), "--model", str(run_folder), "--format", form]
        assert main([*command, *output, "--overwrite"]) == 0
        text = (tmp_path / "out.txt").read_text("utf-8") if to_file else capsys.readouterr().out
        assert "4.png" in text
        assert "0\\udcff.png" in text.replace("\\\\", "\\")


def test_an_exported_checkpoint_has_the_card_of_its_run(run_folder, tmp_path):
    best = run_folder / "checkpoints" / "best.ckpt"
    assert main(["export", str(tmp_path / "model"), "--model", str(best)]) == 0
    card = (run_folder / "model" / "README.md").read_text()
    assert (tmp_path / "model" / "README.md").read_text() == card


def test_half_precision_halves_the_file(run_folder, tmp_path):
    """It is loaded in single precision, rounded to half."""
    for name, half in (("whole", []), ("half", ["--half"])):
        assert main(["export", str(tmp_path / name), "--model", str(run_folder), *half]) == 0
    whole, half = (checkpoint.load(tmp_path / name).captioner for name in ("whole", "half"))
    for part in ("neck", "decoder"):  # the encoder's weights are not stored
        parameters = getattr(half, part).state_dict()
        for name, expected in getattr(whole, part).state_dict().items():
            assert parameters[name].dtype == torch.float32
            assert torch.equal(parameters[name], expected.half().float())
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("half", "whole")]
    assert sizes[0] < 0.52 * sizes[1]


def test_formats_agree(images, run_folder, capsys):
    (images / "2-broken.jpg").unlink()
    texts = {}
    for form in ("text", "jsonl", "csv", "coco"):
        assert main(["caption", str(images), "--model", str(run_folder), "--format", form]) == 0
        texts[form] = capsys.readouterr().out
    expected = [json.loads(line)["caption"] for line in texts["jsonl"].splitlines()]
    assert [line.split("\t")[1] for line in texts["text"].splitlines()] == expected
    assert [row["caption"] for row in csv.DictReader(io.StringIO(texts["csv"]))] == expected
    assert [row["caption"] for row in json.loads(texts["coco"])] == expected


def test_coco_file_names_give_coco_ids(images, run_folder, tmp_path, capsys):
    file = (images / "0.png").rename(tmp_path / "COCO_val2014_000000000042.png")
    results, references = tmp_path / "results.json", tmp_path / "captions.json"
    command = ["caption", str(file), "--model", str(run_folder), "--format=coco"]
    assert main([*command, "--output", str(results)]) == 0
    assert json.loads(results.read_text())[0]["image_id"] == 42
    listed = [{"id": 42, "file_name": file.name}]
    captions = [{"id": 1, "image_id": 42, "caption": "A red circle."}]
    references.write_text(json.dumps({"images": listed, "annotations": captions}))
    assert main(["evaluate", str(results), "--references", str(references), "--java=no"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["images"] == 1
    assert scores["meteor"] is None
    assert scores["tokenizer"] == "nltk-treebank"


def test_a_caption_has_weights_and_alternatives(images, model):
    caption = model.caption(images / "3.png", beam_size=3)
    rows, columns = caption.geometry.grid
    assert caption.weights.shape == (len(caption.words), rows, columns)
    assert caption.weights.dtype == np.float32
    np.testing.assert_allclose(caption.weights.sum((1, 2)), 1, atol=1e-5)
    assert caption.geometry == Geometry(80, 64, (rows, columns))
    assert len(caption.word_log_probs) == len(caption.words)
    assert caption.log_prob < sum(caption.word_log_probs) + 1e-4  # it includes <end>
    assert len(caption.alternatives) == 2
    assert all(other.text != caption.text for other in caption.alternatives)


def test_output_appears_whole_or_not_at_all(images, run_folder, tmp_path, monkeypatch):
    output = tmp_path / "captions.jsonl"
    output.write_text('{"image": "precious"}')
    command = ["caption", str(images), "--model", str(run_folder), "--format=jsonl"]

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predictor.Predictor, "_caption", interrupt)
        assert main([*command, "--output", str(output), "--overwrite"]) == 130
    assert "precious" in output.read_text()
    assert main([*command, "--output", str(output), "--overwrite"]) == 1
    assert len(output.read_text().splitlines()) == 6
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".part")]


def test_debug_shows_the_traceback():
    with pytest.raises(UsageError):
        main(["caption", "nowhere.jpg", "--debug"])


def test_configs_are_listed_and_copied(tmp_path, capsys):
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out.split()
    assert "configs/shapes.yaml" in listed
    mine = tmp_path / "mine"
    assert main(["configs", str(mine)]) == 0
    assert {f"configs/{file.relative_to(mine)}" for file in mine.rglob("*.yaml")} == set(listed)
    assert main(["configs", str(mine)]) == 2


def test_a_caption_appears_in_a_pipe_as_soon_as_it_is_made(images, tiny_folder):
    photo = images / "0.png"
    command = [sys.executable, "-m", "captioner", "caption", str(photo), "/dev/stdin"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [*command, "--model", str(tiny_folder)], stdin=pipe, stdout=pipe, stderr=pipe
    ) as process:
        try:
            assert select.select([process.stdout], [], [], 120)[0], (
                "no caption before the last photo"
            )
            assert process.stdout.readline().startswith(os.fsencode(photo))
            output, errors = process.communicate(photo.read_bytes(), timeout=120)
        finally:
            process.kill()
    assert output.startswith(b"/dev/stdin\t")
    assert not errors, "a progress bar is only for a terminal"


def test_a_terminal_shows_a_bar_above_whole_lines(images, tiny_folder):
    (images / "2-broken.jpg").unlink()
    folder = images.rename(images.with_name("x" * 100))  # longer than a line of the terminal
    options = ["caption", str(folder), "--model", str(tiny_folder)]
    command = [sys.executable, "-m", "captioner", *options]
    terminal, other = os.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    with subprocess.Popen(command, stdout=other, stderr=other, env=environment) as process:
        os.close(other)
        shown = b""
        try:
            while part := os.read(terminal, 1 << 16):
                shown += part
        except OSError:  # the program closed the terminal
            os.close(terminal)
    assert process.returncode == 0
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode()).replace("\r", "\n")
    lines = [line for line in text.split("\n") if line.startswith(str(folder))]
    assert [line.partition(" ")[0] for line in lines] == sorted(map(str, folder.iterdir()))
    assert re.search(r"captioning .* 5/5 ", text)


def test_a_closed_pipe_prints_no_traceback(images, run_folder):
    caption = f"{sys.executable} -m captioner caption {images} --model {run_folder} --batch-size 1"
    command = ["bash", "-c", f"{caption} | head -1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
