"""Make the bundled models again from the photos. Each takes at most 3¼ hours on two CPU cores.

python scripts/train_pretrained.py train luong-dot --root DIR --coco DIR --entities DIR
python scripts/train_pretrained.py measure show-attend-tell-soft --root DIR --coco DIR
python scripts/train_pretrained.py cards
python scripts/results_page.py

``train`` prints and runs each command, resumes after an interruption, skips finished trainings (models
share some), and writes the model and the shared encoder to captioner/pretrained. ``measure`` calls
the shipped model through the public API: development scores from JPEG files, faithfulness on the same
photos, grounding on COCO photos with masks. ``cards`` writes each model's README.md from docs/results.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pretrained.cards import card
from pretrained.recipes import COMMON, ENCODER_STEP, MEANS, RECIPES, Folders, options
from pretrained.shipping import save_mean, ship, ship_encoder

from captioner import resources
from captioner.data.readers import read
from captioner.data.records import TEST, Record, Records
from captioner.data.sources import FurtherData, join
from captioner.errors import ImageError
from captioner.evaluation.metrics import CaptionScorer
from captioner.files import write_text
from captioner.language.word_classes import fluency
from captioner.predict.load import load_own
from captioner.predict.predictor import Predictor
from captioner.provenance import provenance
from captioner.search.options import Decoding

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SPLIT = "val"
HELD_OUT = 250  # photos of COCO: the second development split
BATCH = 64


def train(name: str, folders: Folders) -> None:
    """Run the unfinished trainings of a recipe and ship every model that a training completes."""
    for step in RECIPES[name].steps:
        run = folders.runs / step
        fit(run, folders.root, options(step, folders))
        publish(run, step)
        if step == ENCODER_STEP:
            print(f"encoder written to {ship_encoder(run)}")
        for averaged, parts in MEANS.items():
            if parts[-1] == step:
                save_mean([folders.runs / part for part in parts], folders.runs / averaged)
        for ended, recipe in RECIPES.items():
            if recipe.steps[-1] == step:
                ends = [folders.runs / end for end in recipe.ends]
                folder = ship(ends, ended, card(ended, RESULTS), recipe.decoding)
                print(f"model written to {folder}")


def fit(run: Path, root: Path, arguments: Sequence[str]) -> None:
    """Train unless the run is finished."""
    if not (run / "model" / "config.json").is_file():
        folders = ["--data.root", str(root), "--trainer.default_root_dir", str(run)]
        run_captioner("fit", *COMMON, *folders, *arguments)


def publish(run: Path, name: str) -> None:
    """Copy the result of a run to docs/results."""
    [found] = list((run / "results").glob(f"{SPLIT}-beam*.json"))
    write_text(RESULTS / f"training-{name}.json", found.read_text("utf-8"))


def score(name: str, root: Path, coco: Path, results: Path) -> None:
    """Measure the caption scores of a shipped model on both development splits."""
    results.mkdir(parents=True, exist_ok=True)
    result = scores(name, root, coco)
    write_text(results / f"pretrained-{name}.json", json.dumps(result, indent=2) + "\n")
    print(result["scores"], result["coco_scores"], sep="\n")


def measure(name: str, root: Path, coco: Path, results: Path) -> None:
    """Measure caption scores, faithfulness and grounding of a shipped model."""
    score(name, root, coco, results)
    ground = ["ground", "--model", name]
    photos = ["--data", "flickr8k", "--root", str(root), "--split", SPLIT, "--regime", "forced"]
    output = results / f"faithfulness-flickr8k-{name}.json"
    run_captioner(*ground, *photos, "--output", str(output))
    files = [coco / "annotations" / f"{kind}_train2017.json" for kind in ("instances", "captions")]
    run_captioner(
        *(*ground, "--instances", str(files[0]), "--captions", str(files[1])),
        *("--images", str(coco / "train2017")),
        *("--output", str(results / f"grounding-coco-{name}.json")),
    )


def scores(name: str, root: Path, coco: Path) -> dict[str, Any]:
    """Return the development scores of a shipped model, with how they were measured."""
    predictor = load_own(name)
    records = list(read("flickr8k", root).of_split(SPLIT))
    began = time.perf_counter()
    captions = generated(predictor, records)
    seconds = time.perf_counter() - began
    source = FurtherData("coco2014", str(coco), splits=["train", "val", "test"], held_out=HELD_OUT)
    held_out = list(join(Records(), [source]).of_split(TEST))
    learned = [*predictor.captioner.neck.parameters(), *predictor.captioner.decoder.parameters()]
    return {
        "command": shlex.join(["python", "scripts/train_pretrained.py", *sys.argv[1:]]),
        "model": name,
        "title": RECIPES[name].title,
        "steps": list(RECIPES[name].steps),
        "averaged": list(RECIPES[name].averaged),
        "split": SPLIT,
        "data": "flickr8k",
        "scores": scored(records, captions),
        "coco_scores": scored(held_out, generated(predictor, held_out)),
        "decoding": asdict(predictor.decoding),
        "supervised_by_masks": predictor.supervision,
        "captions": "generated",
        **fluency(captions.values()),
        "mechanism": predictor.captioner.decoder.mechanism,
        "parameters": sum(parameter.numel() for parameter in learned),
        "words": len(predictor.vocabulary),
        "bytes": sum(file.stat().st_size for file in resources.bundled_models()[name].iterdir()),
        "captioning_seconds": round(seconds, 1),
        **provenance(),
    }


def generated(
    predictor: Predictor, records: Sequence[Record], decoding: Decoding | None = None
) -> dict[int | str, str]:
    """Return the captions of photos by id."""
    captions = {}
    found = predictor.captions([record.path for record in records], decoding, BATCH)
    for record, caption in zip(records, found, strict=True):
        if isinstance(caption, ImageError):
            raise caption
        captions[record.image_id] = caption.text
    return captions


def scored(records: Sequence[Record], captions: dict[int | str, str]) -> dict[str, Any]:
    """Return the scores of captions."""
    references = {record.image_id: list(record.captions) for record in records}
    return CaptionScorer(references).score(captions).as_dict()


def run_captioner(*arguments: str) -> None:
    """Print and run a command line."""
    print(shlex.join(["captioner", *arguments]), flush=True)
    environment = dict(os.environ)
    if "--trainer.devices" in arguments:
        environment.setdefault("OMP_NUM_THREADS", "1")
    subprocess.run([sys.executable, "-m", "captioner", *arguments], check=True, env=environment)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line and run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "score", "measure"):
        sub = commands.add_parser(command)
        sub.add_argument("names", nargs="+", choices=list(RECIPES), metavar="NAME")
        sub.add_argument("--root", type=Path, required=True, help="Flickr8k as distributed")
        sub.add_argument("--coco", type=Path, required=True, help="val2014; train2017 with masks")
        if command == "train":
            sub.add_argument("--runs", type=Path, default=Folders.runs)
            boxes = (
                "folder of Flickr30k Entities, for models whose attention is supervised by boxes"
            )
            sub.add_argument("--entities", type=Path, help=boxes)
        else:
            sub.add_argument("--results", type=Path, default=RESULTS)
    commands.add_parser("cards")
    given = parser.parse_args(arguments)
    if given.command == "cards":
        for name, folder in resources.bundled_models().items():
            write_text(folder / "README.md", card(name, RESULTS))
        return
    if given.command == "train" and given.entities is None:
        steps = [options(step, Folders()) for name in given.names for step in RECIPES[name].steps]
        if any("--data.entities" in step for step in steps):
            parser.error(
                "boxes supervise the attention of this model: give --entities DIR, the folder of "
                "Flickr30k Entities"
            )
    for name in given.names:
        if given.command == "train":
            train(name, Folders(given.runs, given.root, given.coco, given.entities or Path()))
        else:
            work = score if given.command == "score" else measure
            work(name, given.root, given.coco, given.results)


if __name__ == "__main__":
    main()
