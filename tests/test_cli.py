"""The command line and the Python front door on pictures."""

import csv
import io
import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import captioner
import runs
from captioner import checkpoint, predictor
from captioner.cli import main
from captioner.errors import ImageError, UsageError
from captioner.images import Geometry


@pytest.fixture(scope="session")
def model(run_folder):
    return captioner.load(run_folder)


@pytest.fixture
def pictures(shapes_cache, run_folder, tmp_path):
    """Five good pictures and a bad one between them."""
    folder = tmp_path / "pictures"
    folder.mkdir()
    scenes = sorted(runs.scenes(shapes_cache).glob("val/*.png"))[:5]
    for number, scene in enumerate(scenes):
        Image.open(scene).resize((50 + 10 * number, 64)).save(folder / f"{number}.png")
    (folder / "2-broken.jpg").write_text("no picture")
    return folder


def good(folder):
    return sorted(folder.glob("?.png"))


def test_one_bad_picture_costs_that_picture(pictures, run_folder, capsys):
    assert main(["caption", str(pictures), "--model", str(run_folder), "--format=jsonl"]) == 1
    captured = capsys.readouterr()
    records = [json.loads(line) for line in captured.out.splitlines()]
    assert [record["image"] for record in records] == sorted(map(str, pictures.iterdir()))
    (bad,) = [record for record in records if "error" in record]
    assert bad["error"]["type"] == "ImageError"
    assert "2-broken.jpg" in bad["error"]["message"]
    assert "1 of 6 pictures" in captured.err
    for record in records:
        if record is not bad:
            assert set(record) == {
                "image",
                "caption",
                "words",
                "log_prob",
                "word_log_probs",
                "model",
            }
            assert record["caption"]
            assert len(record["words"]) == len(record["word_log_probs"])


@pytest.mark.parametrize("form", ["text", "jsonl", "csv", "coco"])
@pytest.mark.parametrize("to_file", [True, False])
def test_a_name_that_is_no_utf8_costs_nothing(
    form, to_file, pictures, run_folder, capsys, tmp_path
):
    odd = os.fsdecode(os.fsencode(good(pictures)[0].with_suffix("")) + b"\xff.png")
    try:
        good(pictures)[0].rename(odd)
    except OSError:
        pytest.skip("THIS FILE SYSTEM KEEPS NO SUCH NAMES")
    (pictures / "2-broken.jpg").unlink()
    output = ["--output", str(tmp_path / "out")] if to_file else []
    command = ["caption", str(pictures), "--model", str(run_folder), "--format", form]
    assert main([*command, *output]) == 0
    text = (tmp_path / "out").read_text("utf-8") if to_file else capsys.readouterr().out
    assert "4.png" in text
    assert "0\\udcff.png" in text.replace("\\\\", "\\")


def test_a_missing_picture_costs_only_itself(pictures, run_folder, capsys):
    inputs = [str(pictures / "missing.png"), str(good(pictures)[0])]
    assert main(["caption", *inputs, "--model", str(run_folder)]) == 1
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    assert "missing.png: found no such file" in captured.err


@pytest.mark.parametrize("target", [".", "missing/out.json", "file/out.json"])
@pytest.mark.parametrize("command", ["caption", "evaluate"])
def test_an_impossible_output_is_named_before_the_work(target, command, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    given = {"caption": ["x.png"], "evaluate": ["x.json", "--references", "y.json"]}[command]
    if command == "caption":
        Image.new("RGB", (9, 9)).save(tmp_path / "x.png")
        given = [str(tmp_path / "x.png")]
    assert main([command, *given, "--output", str(tmp_path / target)]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["export", "configs"])
def test_a_file_is_no_folder(command, run_folder, tmp_path, capsys):
    (tmp_path / "file").write_text("precious")
    options = ["--model", str(run_folder)] if command == "export" else []
    assert main([command, str(tmp_path / "file"), *options]) == 2
    assert "is a file" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "precious"


def test_the_card_of_an_exported_checkpoint_is_that_of_its_run(run_folder, tmp_path):
    best = run_folder / "checkpoints" / "best.ckpt"
    assert main(["export", str(tmp_path / "model"), "--model", str(best)]) == 0
    card = (run_folder / "model" / "README.md").read_text()
    assert (tmp_path / "model" / "README.md").read_text() == card


def test_half_precision_halves_the_file(run_folder, tmp_path):
    """Loaded it is single precision again, and no number has moved by more than half's rounding."""
    for name, half in (("whole", []), ("half", ["--half"])):
        assert main(["export", str(tmp_path / name), "--model", str(run_folder), *half]) == 0
    whole, half = (checkpoint.load(tmp_path / name).captioner for name in ("whole", "half"))
    for part in ("refiner", "decoder"):  # the encoder's weights are a package's, and not stored
        for one, other in zip(
            getattr(whole, part).parameters(), getattr(half, part).parameters(), strict=True
        ):
            assert other.dtype == torch.float32
            assert torch.equal(other, one.half().float())
    sizes = [(tmp_path / n / "model.safetensors").stat().st_size for n in ("half", "whole")]
    assert sizes[0] < 0.52 * sizes[1]


def test_formats_agree(pictures, run_folder, capsys):
    (pictures / "2-broken.jpg").unlink()
    texts = {}
    for form in ("text", "jsonl", "csv", "coco"):
        assert main(["caption", str(pictures), "--model", str(run_folder), "--format", form]) == 0
        texts[form] = capsys.readouterr().out
    expected = [json.loads(line)["caption"] for line in texts["jsonl"].splitlines()]
    assert [line.split("\t")[1] for line in texts["text"].splitlines()] == expected
    assert [row["caption"] for row in csv.DictReader(io.StringIO(texts["csv"]))] == expected
    assert [row["caption"] for row in json.loads(texts["coco"])] == expected


def test_coco_ids(shapes_cache, run_folder, tmp_path, capsys):
    """A COCO file name gives COCO's id; the results are ready for evaluate."""
    picture = sorted(runs.scenes(shapes_cache).glob("val/*.png"))[0]
    file = tmp_path / "COCO_val2014_000000000042.png"
    file.write_bytes(picture.read_bytes())
    results, references = tmp_path / "results.json", tmp_path / "captions.json"
    command = ["caption", str(file), "--model", str(run_folder), "--format=coco"]
    assert main([*command, "--output", str(results)]) == 0
    assert json.loads(results.read_text())[0]["image_id"] == 42
    images = [{"id": 42, "file_name": file.name}]
    captions = [{"id": 1, "image_id": 42, "caption": "A red circle."}]
    references.write_text(json.dumps({"images": images, "annotations": captions}))
    assert main(["evaluate", str(results), "--references", str(references), "--java=no"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert scores["images"] == 1
    assert scores["meteor"] is None
    assert scores["tokenizer"] == "nltk-treebank"


def test_a_batch_is_what_one_by_one_gives(pictures, model):
    paths = good(pictures)
    together = model.caption(paths, batch_size=64)
    for path, caption in zip(paths, together, strict=True):
        alone = model.caption(path)
        assert alone.text == caption.text
        assert alone.log_prob == pytest.approx(caption.log_prob, abs=1e-4)
        np.testing.assert_allclose(alone.weights, caption.weights, atol=1e-5)


def test_caption_says_where_it_looked(pictures, model):
    caption = model.caption(good(pictures)[3], beam_size=3)
    rows, columns = caption.geometry.grid
    assert caption.weights.shape == (len(caption.words), rows, columns)
    assert caption.weights.dtype == np.float32
    np.testing.assert_allclose(caption.weights.sum((1, 2)), 1, atol=1e-5)
    assert caption.geometry == Geometry(80, 64, (rows, columns))
    assert len(caption.word_log_probs) == len(caption.words)
    assert caption.log_prob < sum(caption.word_log_probs) + 1e-4  # the end is in it too
    assert len(caption.alternatives) == 2
    assert all(other.text != caption.text for other in caption.alternatives)


def test_explaining_its_own_caption_gives_the_same(pictures, model):
    caption = model.caption(good(pictures)[0])
    forced = model.explain(good(pictures)[0], caption.text)
    assert forced.words == caption.words
    assert forced.log_prob == pytest.approx(caption.log_prob, abs=1e-4)
    np.testing.assert_allclose(forced.weights, caption.weights, atol=1e-5)


def test_explain_takes_any_sentence(pictures, model):
    forced = model.explain(good(pictures)[0], "A zebra, on the moon!")
    assert forced.words == ("a", "zebra", "on", "the", "moon")
    assert len(forced.weights) == 5
    with pytest.raises(UsageError, match="at least one word"):
        model.explain(good(pictures)[0], "?!")
    with pytest.raises(ImageError, match="2-broken"):
        model.explain(pictures / "2-broken.jpg", "a dog")


def test_sources_of_every_kind(pictures, model):
    path = good(pictures)[1]
    expected = model.caption(path).text
    with Image.open(path) as picture, path.open("rb") as stream:
        for source in (str(path), path.read_bytes(), stream, picture):
            assert model.caption(source).text == expected
    assert model.caption([]) == []


def test_output_appears_whole_or_not_at_all(pictures, run_folder, tmp_path, monkeypatch):
    output = tmp_path / "captions.jsonl"
    output.write_text("precious")
    command = ["caption", str(pictures), "--model", str(run_folder), "--format=jsonl"]

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(predictor.Predictor, "_caption", dies)
        assert main([*command, "--output", str(output)]) == 130
    assert output.read_text() == "precious"
    assert main([*command, "--output", str(output)]) == 1
    assert len(output.read_text().splitlines()) == 6
    assert not [file for file in tmp_path.iterdir() if file.name.endswith(".part")]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["caption", "nowhere.jpg"], "nowhere.jpg"),
        (["caption", "--beam-size", "0", "x"], "whole number from 1"),
        (["caption", "--format", "xml", "x"], "xml"),
        (["caption"], "INPUT"),
        (["nonsense"], "nonsense"),
        ([], "COMMAND"),
        (["evaluate", "nowhere.json", "--references", "nowhere.json"], "nowhere.json"),
        (["evaluate", "nowhere.json"], "--references"),
        (["export", "somewhere", "--model", "nowhere"], "nowhere"),
    ],
)
def test_a_wrong_call_is_one_line_and_status_2(arguments, said, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert error.startswith("captioner: ")
    assert said in error


@pytest.mark.parametrize(
    ("option", "said"), [("--model=nowhere", "nowhere"), ("--device=gpu7", "gpu7")]
)
def test_a_wrong_model_or_device(option, said, pictures, run_folder, capsys):
    assert main(["caption", str(pictures), f"--model={run_folder}", option]) == 2
    assert said in capsys.readouterr().err


def test_without_a_model_the_bundled_default_speaks(pictures, capsys):
    assert main(["caption", str(pictures), "--format", "jsonl"]) == 1  # one picture is broken
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {r["model"] for r in records if "caption" in r} == {"show-attend-tell-soft"}


def test_what_could_have_been_meant_is_named(pictures, capsys):
    assert main(["caption", str(pictures), "--model", "show-attend-tell"]) == 2
    assert "the bundled models are show-attend-tell-soft, " in capsys.readouterr().err


def test_debug_shows_the_traceback(tmp_path):
    with pytest.raises(UsageError):
        main(["caption", str(tmp_path / "nothing"), "--debug"])


def test_an_output_folder_that_is_not_there(pictures, run_folder, capsys):
    command = ["caption", str(pictures), "--model", str(run_folder), "--output", "no/such/x.txt"]
    assert main(command) == 2
    assert "no/such" in capsys.readouterr().err


def test_models_lists_runs(run_folder, capsys):
    assert main(["models", "--runs", str(run_folder.parent)]) == 0
    assert f"{run_folder}\trun" in capsys.readouterr().out
    assert main(["models", "--runs", "nowhere"]) == 0


def test_configs_are_listed_and_copied(tmp_path, capsys):
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out.split()
    assert "configs/shapes.yaml" in listed
    assert main(["configs", str(tmp_path / "mine")]) == 0
    copied = {str(f.relative_to(tmp_path / "mine")) for f in (tmp_path / "mine").rglob("*.yaml")}
    assert {f"configs/{name}" for name in copied} == set(listed)
    assert main(["configs", str(tmp_path / "mine")]) == 2


def test_a_reader_that_stops_early_is_no_traceback(pictures, run_folder):
    command = (
        f"{sys.executable} -m captioner caption {pictures} --model {run_folder} --batch-size 1"
    )
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -1"],
        capture_output=True,
        text=True,
        env=os.environ,
        check=False,
    )
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    text = capsys.readouterr().out
    for name in (
        "fit",
        "test",
        "predict",
        "caption",
        "explain",
        "evaluate",
        "export",
        "prepare",
        "models",
        "demo",
        "configs",
    ):
        assert re.search(rf"^ +{name} ", text, re.MULTILINE), name
