"""Compare mechanisms of attention after the same training: what they learn, and where they look.

python scripts/mechanisms_table.py commands scenes --runs runs/mechanisms > all.sh && sh all.sh
python scripts/mechanisms_table.py commands photos --runs runs/designs --root DIR --entities DIR > all.sh
sh all.sh
python scripts/mechanisms_table.py collect runs/mechanisms/* --output mechanisms.json
python scripts/mechanisms_table.py collect runs/designs/* --time --output docs/results/designs.json
python scripts/results_page.py

``commands`` prints a training and measurements by ``captioner ground`` for every mechanism of
mechanisms_table.toml. ``scenes`` trains on generated scenes (``configs/shapes.yaml``) and measures on
similar and on harder scenes; ``photos`` trains on Flickr8k with the two-stream encoder and measures on
boxes of Flickr30k Entities. ``collect`` writes the results of run folders into one file. ``--time`` adds
the median time of a forward and backward pass from annotations in float32, without the optimiser; the
runs are timed in turn.
"""

import argparse
import json
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import yaml
from speed.measure import Contestant, medians
from speed.rows import random_captions

from captioner import fast
from captioner.files import write_text
from captioner.models.registry import build
from captioner.provenance import provenance
from captioner.store import checkpoint

TABLES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_suffix(".toml").read_text("utf-8")
)
TWO_PROCESSES = ["--trainer.precision=bf16-mixed", "--trainer.devices=2", "--trainer.strategy=ddp"]
EPOCHS = {"scenes": "--trainer.max_epochs=4", "photos": "--trainer.max_epochs=3"}
HARDER = ("max_objects=6",)
PHOTOS = 16  # of a timed step, with 5 captions each
FORCED = ("pointing", "discrimination", "mass")  # measured on reference captions


def on_scenes(runs: Path) -> Iterator[list[str]]:
    """Yield the lines to run for generated scenes, in order."""
    for name, options in TABLES["scenes"].items():
        run = runs / name
        fit = ["fit", "--config", "configs/shapes.yaml", f"--trainer.default_root_dir={run}"]
        yield [*fit, EPOCHS["scenes"], *(f"--model.{option}" for option in options.split())]
        for file, more in (("ground", []), ("harder", ["--scene-options", *HARDER])):
            output = ["--output", str(run / "results" / f"{file}.json")]
            yield ["ground", "--model", str(run), "--scenes=200", *more, *output]


def on_photos(runs: Path, root: Path, entities: Path) -> Iterator[list[str]]:
    """Yield the lines to run for photos, in order."""
    for name, options in TABLES["photos"].items():
        design, *more = options.split()
        models = [f"--model=configs/model/{file}.yaml" for file in ("two-stream", design)]
        folders = [f"--data.root={root}", f"--trainer.default_root_dir={runs / name}"]
        fit = ["fit", "--config=configs/flickr8k.yaml", *models, *TWO_PROCESSES, EPOCHS["photos"]]
        yield [*fit, *folders, *more]
        boxes = ["--entities", str(entities), "--data=flickr8k", "--root", str(root)]
        output = ["--no-faithfulness", "--output", str(runs / name / "results" / "entities.json")]
        yield ["ground", "--model", str(runs / name), *boxes, *output]


def row(run: Path) -> dict[str, Any]:
    """Collect the results in a run folder.

    Raises:
        SystemExit: if results of ``captioner fit`` or ``captioner ground`` are missing.
    """
    found: dict[str, Any] = {"reports": {}}
    for file in sorted((run / "results").glob("*.json")):
        record = json.loads(file.read_text("utf-8"))
        if isinstance(record, dict) and "regimes" in record:
            found["reports"][record["data"]] = report(record)
        elif isinstance(record, dict) and record.get("training_seconds") is not None:
            keep = ("command", "commit", "machine", "seed", "mechanism", "parameters", "resumed")
            found |= {key: record.get(key) for key in (*keep, "training_seconds", "decoding")}
            found["supervised_by_masks"] = record.get("supervised_by_masks", 0.0)
            found["split"], found["cider"] = record["split"], record["scores"]["cider"]
            found["scores"] = record["scores"]
    if not found["reports"] or "cider" not in found:
        missing = "captioner ground" if "cider" in found else "captioner fit"
        sys.exit(f"'{run}' has no results of {missing}; 'commands' prints the calls that make them")
    return found


def report(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the table needs of a report."""
    forced, generated = (record["regimes"].get(name, {}) for name in ("forced", "generated"))
    scores = forced.get("scores", {})
    return {
        **{name: scores["model"][name] for name in FORCED if scores},
        **{name: forced.get(name) for name in ("map_entropy", "on_photo")},
        **{name: generated.get("objects", {}).get(name) for name in ("true_captions", "chair_i")},
        **{name: record[name] for name in ("command", "commit")},
    }


def step_times(runs: dict[str, Path], rounds: int = 5) -> dict[str, float]:
    """Return the milliseconds of a step of every run: neck, rollout, decoder, loss and backward."""

    def step(run: Path) -> Contestant:
        captioner = checkpoint.load(run).captioner.train()
        fast.accelerate(captioner)  # as in training
        tree = yaml.safe_load((run / "config.yaml").read_text("utf-8"))["model"]["objective"]
        objective = build("objective", tree)
        encoder = captioner.encoder.eval()
        with torch.inference_mode():
            found = encoder(encoder.blank().expand(PHOTOS, -1, -1, -1))
        encoded = found.map(lambda vectors: torch.rand(vectors.shape))
        tokens = random_captions(PHOTOS, len(captioner.vocabulary), longest=20)

        def work() -> None:
            annotations = captioner.neck(encoded)
            rollout = objective.rollout(captioner.decoder, annotations, tokens)
            inputs, targets = rollout.tokens[..., :-1], rollout.tokens[..., 1:]
            decoded = captioner.decoder(annotations, inputs)
            torch.autograd.backward(objective(decoded, targets, rollout.rewards, None).total)
            captioner.zero_grad()

        return Contestant(work)

    taken = medians({name: step(run) for name, run in runs.items()}, rounds)
    return {name: round(1000 * seconds, 1) for name, seconds in taken.items()}


def collect(runs: list[Path], output: Path, timed: bool) -> None:
    """Write the results of run folders into one file, in the order of their table."""
    found = {run.resolve().name: run for run in runs}
    order = max(map(list, TABLES.values()), key=lambda names: len(found.keys() & set(names)))
    names = sorted(found, key=lambda name: order.index(name) if name in order else len(order))
    rows = {name: row(found[name]) for name in names}
    for name, taken in (step_times({n: found[n] for n in names}) if timed else {}).items():
        rows[name]["step_milliseconds"] = taken
    record = {"command": shlex.join(["python", *sys.argv]), "mechanisms": rows, **provenance()}
    write_text(output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{len(rows)} mechanisms written to {output}")


def main(arguments: list[str] | None = None) -> None:
    """Print the commands, or collect the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parts = parser.add_subparsers(dest="command", required=True)
    printing = parts.add_parser("commands", help="print the commands that train and measure")
    printing.add_argument("table", choices=TABLES)
    printing.add_argument("--runs", type=Path, required=True, help="the folder of the runs")
    printing.add_argument("--root", type=Path, help="Flickr8k as distributed, for photos")
    printing.add_argument("--entities", type=Path, help="Flickr30k Entities, for photos")
    collecting = parts.add_parser("collect", help="write the results of runs into one file")
    collecting.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    collecting.add_argument(
        "--time", action="store_true", help="measure a training step of each run"
    )
    collecting.add_argument("--output", type=Path, required=True)
    options = parser.parse_args(arguments)
    if options.command == "collect":
        collect(options.folders, options.output, options.time)
        return
    if options.table == "photos" and not (options.root and options.entities):
        parser.error("photos need --root DIR and --entities DIR")
    photos = options.table == "photos"
    data = (options.root, options.entities) if photos else ()
    for line in (on_photos if photos else on_scenes)(options.runs, *data):
        print(shlex.join(["captioner", *line]))


if __name__ == "__main__":
    main()
