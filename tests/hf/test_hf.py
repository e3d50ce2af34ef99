"""Models of transformers: captions, maps and log-probabilities are those of the library itself."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image

import captioner
import hf_models
from captioner.cli.main import main
from captioner.data.shapes import scene
from captioner.errors import CheckpointError, UsageError
from captioner.hf.cells import placement
from captioner.hf.families import QUESTION
from captioner.hf.model import HFAdapter
from captioner.photos.geometry import to_photo
from captioner.photos.images import Photo
from hf_models import transformers

LENGTH = 6


@pytest.fixture(scope="module", params=hf_models.FAMILIES)
def folder(request, tmp_path_factory):
    return hf_models.save(request.param, tmp_path_factory.mktemp("hf") / request.param)


@pytest.fixture(scope="module")
def blip(tmp_path_factory):
    return hf_models.save("blip", tmp_path_factory.mktemp("hf") / "blip")


@pytest.fixture(scope="module")
def predictor(folder):
    return captioner.load(f"hf:{folder}", "cpu")


def photos(count, size=(48, 48)):
    generator = np.random.default_rng(3)
    shape = (size[1], size[0], 3)
    return [Image.fromarray(generator.integers(0, 256, shape, np.uint8)) for _ in range(count)]


@torch.inference_mode()
def library(folder, images, beams):
    """The library's own answer, with its scores and attention, without any code of the package."""
    config = json.loads((folder / "config.json").read_text())
    model = getattr(transformers, config["architectures"][0])
    model = model.from_pretrained(folder, attn_implementation="eager").eval()
    if config["model_type"] == "vision-encoder-decoder":
        inputs = transformers.ViTImageProcessor.from_pretrained(folder)(images, return_tensors="pt")
    else:
        processor = transformers.AutoProcessor.from_pretrained(folder)
        if config["model_type"] in ("llava", "idefics3", "smolvlm"):
            prompt = f"USER: {processor.image_token}\n{QUESTION} ASSISTANT:"
            nested = [[image] for image in images]
            split = {} if config["model_type"] == "llava" else {"do_image_splitting": False}
            prompts = [prompt] * len(images)
            inputs = processor(text=prompts, images=nested, return_tensors="pt", **split)
        else:
            inputs = processor(images=images, return_tensors="pt")
    inputs.pop("mm_token_type_ids", None)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    out = model.generate(
        **inputs, num_beams=beams, max_new_tokens=LENGTH, do_sample=False,
        return_dict_in_generate=True, output_attentions=True, output_scores=True,
    )  # fmt: skip
    prefix = inputs["input_ids"].shape[1] if "input_ids" in inputs else 1
    texts = tokenizer.batch_decode(
        out.sequences[:, prefix:], skip_special_tokens=True, clean_up_tokenization_spaces=False
    )
    cells = torch.arange(1, 17)  # after the class token
    if prefix > 1:
        cells = torch.nonzero(inputs["input_ids"][0] == model.config.image_token_id)[:, 0]
    maps = []
    for row, ids in enumerate(out.sequences):
        of_steps = []
        for step in range(len(ids) - prefix):
            if config["model_type"] == "blip":  # its ``generate`` returns no cross-attention
                states = model.vision_model(inputs["pixel_values"][row : row + 1])[0]
                layers = model.text_decoder(
                    ids[None, : prefix + step], encoder_hidden_states=states, output_attentions=True
                ).cross_attentions
                source = 0
            else:
                layers = (getattr(out, "cross_attentions", None) or out.attentions)[step]
                source = row if beams == 1 else int(out.beam_indices[row, step])
            if source < 0:  # the caption has ended
                break
            of_steps.append(torch.stack([layer[source, :, -1, cells] for layer in layers]))
        maps.append(torch.stack(of_steps).unflatten(-1, (4, 4)).numpy())
    return [text.strip() for text in texts], maps, getattr(out, "sequences_scores", None)


@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("beams", [1, 3])
def test_captions_scores_and_maps_are_the_librarys(folder, predictor, beams, count):
    images = photos(count)
    texts, maps, scores = library(folder, images, beams)
    options = {"beam_size": beams, "max_length": LENGTH}
    found = predictor.caption(images, batch_size=count, **options)
    assert [caption.text for caption in found] == texts
    decoding = predictor.decoding.with_options(options)
    quick = predictor.captions(images, decoding, count, maps=False)
    for caption, without in zip(found, quick, strict=True):
        assert (without.text, without.weights.size) == (caption.text, 0)
        assert without.log_prob == pytest.approx(caption.log_prob, abs=1e-4)
        assert len(caption.alternatives) == beams - 1
        np.testing.assert_allclose(caption.weights.sum((1, 2)), 1, atol=1e-5)
    if scores is not None:
        np.testing.assert_allclose([c.score for c in found], scores, atol=1e-5)
    generated = predictor.adapter.generate(images, decoding, True)
    for of_photo, expected in zip(generated, maps, strict=True):
        attention = of_photo[0].attention
        assert len(attention) >= 1
        np.testing.assert_allclose(attention, expected[: len(attention)], rtol=1e-5, atol=1e-6)
        assert np.ptp(attention) > 1e-3  # not even, or any map would pass


def test_a_sentence_is_explained_as_the_model_reads_it(folder, predictor):
    """The explanation of the model's own caption has the caption's maps."""
    (image,) = photos(1)
    sentence = "a dog running left"
    explained = predictor.explain(image, sentence)
    assert (explained.text, explained.words) == (sentence, tuple(sentence.split()))
    reading = predictor.adapter.read(image, sentence)
    count = len(reading.pieces)
    assert count > 4  # "running" has several pieces
    ends = np.cumsum([len(piece) for piece in reading.pieces])
    start = "".join(reading.pieces).index(" running")
    members = (ends > start) & (ends <= start + len(" running"))
    assert members.sum() >= 2
    np.testing.assert_allclose(explained.layers[2], reading.attention[members].mean(0), atol=1e-6)
    total = np.array(reading.log_probs[:count])[members].sum()
    assert explained.word_log_probs[2] == pytest.approx(total)
    assert explained.log_prob == pytest.approx(sum(reading.log_probs))
    assert reading.rollout.shape == (count, 4, 4)
    assert (reading.rollout >= 0).all()
    assert reading.rollout.sum((1, 2)).max() <= 1 + 1e-5


def test_erasing_cells_changes_only_what_the_model_sees_of_them(predictor):
    (image,) = photos(1)
    cells = np.zeros((3, 4, 4), bool)
    cells[1, 0, 0] = cells[2] = True
    nothing, one, everything = predictor.adapter.erase(image, "a dog", cells)
    whole = predictor.adapter.read(image, "a dog").log_probs
    np.testing.assert_allclose(nothing, whole[:-1], atol=1e-5)
    assert np.abs(one - nothing).max() > 1e-5
    assert np.abs(everything - one).max() > 1e-5


def processors():
    square, crop = {"height": 56, "width": 56}, {"shortest_edge": 56}
    yield "squash", lambda i: transformers.ViTImageProcessor(size=square)(i)
    yield "crop", lambda i: transformers.CLIPImageProcessor(
        size=crop, crop_size={"height": 56, "width": 56})(i)  # fmt: skip
    yield "pad", lambda i: transformers.LlavaImageProcessor(
        size=crop, crop_size=square, do_pad=True)(i)  # fmt: skip
    yield "idefics3", lambda i: transformers.Idefics3ImageProcessor(
        size={"longest_edge": 112}, max_image_size={"longest_edge": 56})(
        [i], do_image_splitting=False)  # fmt: skip


@pytest.mark.parametrize("size", [(300, 150), (150, 300), (200, 200), (640, 150)])
@pytest.mark.parametrize(("kind", "process"), list(processors()))
def test_marked_corners_are_found_where_they_are_on_the_photo(kind, process, size):
    """A map that is the brightness of the processed pixels peaks at the bright spot of the photo."""

    def pixels(image):
        values = np.asarray(process(image)["pixel_values"][0], np.float64)
        return values.reshape(-1, 56, 56)[:3]

    box = placement(size, pixels)
    width, height = size
    side = min(size) // 8
    visible = min(1, height / width), min(1, width / height)  # share of each side in a centre crop
    for right in (0, 1):
        for bottom in (0, 1):
            spans = visible if kind == "crop" else (1, 1)
            x, y = (
                round(length * (1 - span) / 2 + end * (length * span - side))
                for length, span, end in zip(size, spans, (right, bottom), strict=True)
            )
            photo = Image.new("RGB", size)
            photo.paste("white", (x, y, x + side, y + side))
            dark = pixels(Image.new("RGB", size))
            light = np.abs(pixels(photo) - dark).sum(0)
            cells = light.reshape(14, 4, 14, 4).mean((1, 3))
            found = to_photo(cells / cells.sum(), box, (30, 30))
            centre = [
                (found.sum(1 - axis) * (np.arange(30) + 0.5) / 30).sum() / found.sum()
                for axis in (1, 0)
            ]
            expected = (x + side / 2) / width, (y + side / 2) / height
            half_a_cell = np.subtract(box[2:], box[:2]) / 28 + 1 / 60
            assert (np.abs(np.subtract(centre, expected)) < half_a_cell).all()
            assert found.sum() == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, "model_type 'bert'.*blip .*git .*llava"),
        ({"model_type": "blip", "architectures": ["BlipForQuestionAnswering"]}, "BlipForQuestion"),
        (
            {"model_type": "new", "auto_map": {"AutoModel": "x.Y"}},
            "without Python code of their own",
        ),
    ],
)
def test_other_models_are_refused_by_name(tmp_path, config, words):
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=rf"{tmp_path}.*{words}"):
        captioner.load(f"hf:{tmp_path}")


def test_only_safetensors_are_read(blip, tmp_path):
    model = transformers.BlipForConditionalGeneration.from_pretrained(blip)
    for file in blip.glob("*.json"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"cannot be loaded.*model\.safetensors"):
        captioner.load(f"hf:{tmp_path}")


def test_a_missing_folder_and_a_missing_library_are_one_line(monkeypatch, tmp_path):
    with pytest.raises(CheckpointError, match="cannot be loaded by transformers"):
        captioner.load(f"hf:{tmp_path}/nowhere")
    monkeypatch.setitem(sys.modules, "captioner.hf.hub", None)
    with pytest.raises(UsageError, match=r"pip install 'captioner\[hf\]'"):
        captioner.load("hf:Salesforce/blip-image-captioning-base")


def test_the_commands_take_it(blip, tmp_path, capsys, in_process):
    photo = tmp_path / "photo.png"
    photos(1, (60, 40))[0].save(photo)
    (tmp_path / "broken.png").write_bytes(b"\x89PNG")
    model = ["--model", f"hf:{blip}", "--device", "cpu"]
    assert main(["caption", str(tmp_path), *model]) == 1
    text = captioner.load(f"hf:{blip}").caption(photo).text
    out, err = capsys.readouterr()
    assert out == f"{photo}\t{text}\n"
    assert "broken.png" in err
    output = tmp_path / "maps"
    shown = {"": [], "layer": ["--layer", "2", "--head", "1"], "rollout": ["--method", "rollout"]}
    for name, options in shown.items():
        command = ["explain", str(photo), *model, "--output", str(output / name), *options]
        assert main([*command, "--formats", "npz", "html", "json"]) == 0
    files = {name: np.load(output / name / "photo.npz") for name in shown}
    layers = files[""]["layers"]
    assert layers.shape[1:] == (2, 4, 4, 4)
    mean, chosen = layers.mean((1, 2)), layers[:, 1, 0]
    np.testing.assert_allclose(files[""]["outside"], 1 - mean.sum((1, 2)), atol=1e-5)
    for name, expected in {"": mean, "layer": chosen, "rollout": files[""]["rollout"]}.items():
        expected = expected / expected.sum((1, 2), keepdims=True)
        np.testing.assert_allclose(files[name]["weights"], expected, atol=1e-6)


@pytest.mark.parametrize("folder", ["blip", "llava"], indirect=True)
def test_ground_scores_its_maps_and_erases_its_cells(folder, tmp_path, capsys, monkeypatch):
    report, sizes, generate = tmp_path / "tiny/results/report.json", [], HFAdapter.generate
    report.parent.mkdir(parents=True)
    monkeypatch.setattr(HFAdapter, "generate", lambda *a: sizes.append(len(a[1])) or generate(*a))
    options = ["--scenes", "2", "--beam-size", "1", "--output", str(report), "--device", "cpu"]
    assert main(["ground", "--model", f"hf:{folder}", *options]) == 0
    assert sizes == [2]  # both scenes together
    assert "the maps are on" in capsys.readouterr().out
    found = json.loads(report.read_text())
    forced = found["regimes"]["forced"]
    assert found["mechanism"].endswith(("cross-attention", "self-attention on image tokens"))
    assert forced["coverage"]["mentions_with_mask"] > 2
    assert 0 < forced["scores"]["model"]["mass"]["value"] < 100
    words = forced["faithfulness"]["scores"]["all"]
    assert words["words"] > 10
    assert words["area_most"]["value"] != words["area_least"]["value"]
    assert main(["compare", str(tmp_path / "tiny")]) == 0
    assert "tiny" in capsys.readouterr().out


@pytest.mark.slow
def test_the_maps_of_a_trained_model_point_at_the_object(tmp_path):
    """A BLIP that learns the colours of objects looks at them: its maps are not moved."""
    folder = hf_models.trained_blip(tmp_path / "trained")
    model = captioner.load(f"hf:{folder}", "cpu")
    scenes = [scene(1, index, image_size=64, max_objects=1) for index in range(100)]
    captions = model.caption([shown.image for shown in scenes])
    texts = [hf_models.colour_caption(shown) for shown in scenes]
    assert sum(found.text == text for found, text in zip(captions, texts, strict=True)) >= 90
    chance = points = 0.0
    for shown, text in zip(scenes, texts, strict=True):
        explained = model.explain(shown.image, text)
        mask = explained.geometry.to_grid(shown.masks[0]) > 0
        points += mask.flat[explained.weights[1].argmax()]  # of the colour
        chance += mask.mean()
    assert points >= 80
    assert chance < 20


def test_the_app_answers_with_it(blip, tmp_path):
    from captioner.app.served_models import Models

    photos(1)[0].save(tmp_path / "photo.png")
    photo, models = Photo.read(tmp_path / "photo.png"), Models([f"hf:{blip}"], "cpu")
    answer = models.answer(photo, models.names[0], beam_size=3)
    assert len(answer.captions) == 3
    assert not answer.can_sample
    assert models.answer(photo, models.names[0], "a dog").caption.text == "a dog"


def test_a_folder_of_photos_gets_shards_and_resumes(blip, tmp_path, in_process):
    from captioner.batch.batch_captioner import BatchCaptioner

    def changed(name, **settings):
        folder = shutil.copytree(blip, tmp_path / f"{name}-{len(list(tmp_path.iterdir()))}")
        file = folder / f"{name}.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | settings))
        return BatchCaptioner(f"hf:{folder}", "cpu").identity["model"]["sha256"]

    original = BatchCaptioner(f"hf:{blip}", "cpu").identity["model"]["sha256"]
    assert len(original) == 64
    assert changed("generation_config", transformers_version="5.0.0") == original
    assert changed("config", transformers_version="5.0.0") == original
    assert changed("generation_config", repetition_penalty=1.5) != original
