"""Makes the bundled models again from the raw photos: on two CPU cores, under two hours each.

python scripts/train_pretrained.py train show-attend-tell-soft --root DIR
python scripts/train_pretrained.py seed 2 show-attend-tell-soft --root DIR
python scripts/train_pretrained.py measure show-attend-tell-soft --root DIR --coco DIR
python scripts/train_pretrained.py cards
python scripts/results_page.py

``train`` prints each command before running it, goes on after an interruption, leaves out trainings
that are done (models share some), and puts the model into ``captioner/pretrained``, with the encoder
that all share and the model that this one learned with; a model that was made with an encoder of other
weights is refused until it is made again, too. ``seed`` trains a model's last step again from another
seed than the first, and keeps its scores alone. ``measure`` asks the model as it is shipped, through
the package's front door: dev scores from JPEG files, faithfulness on the same photos, grounding on COCO
photos with masks. ``cards`` writes each model's README.md from
what is in ``docs/results``.
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
from pretrained.recipes import COMMON, RECIPES, STEPS
from pretrained.shipping import ship, ship_encoder

import captioner
from captioner import shipped
from captioner.data.readers import read
from captioner.errors import ImageError
from captioner.evaluation.captions import CaptionScorer
from captioner.evaluation.fluency import fluency
from captioner.files import write_text
from captioner.provenance import provenance

RESULTS = Path(__file__).parents[1] / "docs" / "results"
SPLIT = "val"
BATCH = 64  # pictures captioned together


def train(name: str, root: Path, runs: Path) -> None:
    """All trainings of a recipe that are not done yet, and the model that each ends with, if one does.

    A new encoder comes with the model that it learned with, from which others begin.
    """
    for step in RECIPES[name].steps:
        run = runs / step
        fit(run, root, [option.format(runs=runs) for option in STEPS[step].options])
        if STEPS[step].encoder:
            print(f"encoder written to {ship_encoder(run)}")
        for ended, recipe in RECIPES.items():
            if recipe.steps[-1] == step:
                ends = [runs / end for end in recipe.ends]
                folder = ship(ends, ended, card(ended, RESULTS), recipe.decoding)
                print(f"model written to {folder}")
    keep(name, runs)


def seed(number: int, name: str, root: Path, runs: Path) -> None:
    """The step of a recipe that chance is measured by, again; scored by the recipe's search."""
    recipe = RECIPES[name]
    assert recipe.seeded is not None
    search = [
        f"--model.decoding.{option}={value}" for option, value in asdict(recipe.decoding).items()
    ]
    options = [option.format(runs=runs) for option in STEPS[recipe.seeded].options]
    run = runs / f"{recipe.seeded}-seed-{number}"
    fit(run, root, [*options, *search, f"--seed_everything={number}"])
    publish(run, run.name)


def fit(run: Path, root: Path, options: Sequence[str]) -> None:
    """One training, where it is not done yet."""
    if not (run / "model" / "config.json").is_file():
        where = ["--data.root", str(root), "--trainer.default_root_dir", str(run)]
        captioner_command("fit", *COMMON, *where, *options)


def keep(name: str, runs: Path) -> None:
    """The results of the trainings behind a model, where the page of results finds them."""
    for step in RECIPES[name].steps:
        publish(runs / step, step)


def publish(run: Path, name: str) -> None:
    """The result of a run, as the page of results knows it."""
    [found] = list((run / "results").glob(f"{SPLIT}-beam*.json"))
    write_text(RESULTS / f"training-{name}.json", found.read_text("utf-8"))


def measure(name: str, root: Path, coco: Path, results: Path) -> None:
    """Dev scores, faithfulness and grounding of a model as it is shipped."""
    results.mkdir(parents=True, exist_ok=True)
    predictor = captioner.load(name)
    records = list(read("flickr8k", root).of_split(SPLIT))
    began = time.perf_counter()
    captions = {}
    for record, found in zip(
        records, predictor.captions([r.path for r in records], batch_size=BATCH), strict=True
    ):
        if isinstance(found, ImageError):
            raise found
        captions[record.image_id] = found.text
    seconds = time.perf_counter() - began
    references = {record.image_id: list(record.captions) for record in records}
    scores = CaptionScorer(references).score(captions)
    result = {
        "command": shlex.join(["python", "scripts/train_pretrained.py", *sys.argv[1:]]),
        "model": name,
        "title": RECIPES[name].title,
        "steps": list(RECIPES[name].steps),
        "averaged": list(RECIPES[name].averaged),
        "split": SPLIT,
        "data": "flickr8k",
        "scores": scores.as_dict(),
        "decoding": asdict(predictor.decoding),
        "captions": "generated",
        **fluency(captions.values()),
        "mechanism": predictor.captioner.decoder.mechanism,
        "parameters": sum(
            p.numel()
            for part in (predictor.captioner.refiner, predictor.captioner.decoder)
            for p in part.parameters()
        ),
        "words": len(predictor.vocabulary),
        "bytes": sum(file.stat().st_size for file in shipped.models()[name].iterdir()),
        "captioning_seconds": round(seconds, 1),
        **provenance(),
    }
    write_text(results / f"pretrained-{name}.json", json.dumps(result, indent=2) + "\n")
    print(scores)
    told = ["ground", "--model", name]
    captioner_command(
        *(*told, "--data", "flickr8k", "--root", str(root), "--split", SPLIT, "--regime", "forced"),
        *("--output", str(results / f"faithfulness-flickr8k-{name}.json")),
    )
    files = [coco / "annotations" / f"{what}_train2017.json" for what in ("instances", "captions")]
    captioner_command(
        *(*told, "--instances", str(files[0]), "--captions", str(files[1])),
        *("--images", str(coco / "train2017")),
        *("--output", str(results / f"grounding-coco-{name}.json")),
    )


def captioner_command(*arguments: str) -> None:
    """Runs the command line as a user would, and says so."""
    print(shlex.join(["captioner", *arguments]), flush=True)
    environment: dict[str, Any] = dict(os.environ)
    if "--trainer.devices" in arguments:
        environment.setdefault("OMP_NUM_THREADS", "1")
    subprocess.run([sys.executable, "-m", "captioner", *arguments], check=True, env=environment)


def main(arguments: Sequence[str] | None = None) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for command in ("train", "seed", "measure"):
        sub = commands.add_parser(command)
        if command == "seed":
            sub.add_argument("number", type=int, choices=range(2, 100), metavar="SEED")
        names = [name for name, recipe in RECIPES.items() if command != "seed" or recipe.seeded]
        sub.add_argument("names", nargs="+", choices=names, metavar="NAME")
        sub.add_argument("--root", type=Path, required=True, help="the folder of Flickr8k")
        if command != "measure":
            sub.add_argument("--runs", type=Path, default=Path("runs/pretrained"))
        else:
            sub.add_argument("--coco", type=Path, required=True, help="train2017 with masks")
            sub.add_argument("--results", type=Path, default=RESULTS)
    commands.add_parser("cards")
    options = parser.parse_args(arguments)
    if options.command == "cards":
        for name, folder in shipped.models().items():
            write_text(folder / "README.md", card(name, RESULTS))
        return
    for name in options.names:
        if options.command == "train":
            train(name, options.root, options.runs)
        elif options.command == "seed":
            seed(options.number, name, options.root, options.runs)
        else:
            measure(name, options.root, options.coco, options.results)


if __name__ == "__main__":
    main()
