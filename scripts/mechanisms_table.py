"""Ways of attending beside each other on generated scenes: what is learned, and where it looks.

python scripts/mechanisms_table.py --commands runs/mechanisms > all.sh    and run it
python scripts/mechanisms_table.py runs/mechanisms/* --output docs/results/mechanisms.json
python scripts/results_page.py

The first line prints a training for each mechanism of ``MECHANISMS``, which differ from
``configs/model/small.yaml`` in the options it names, and two measurements each: on scenes such as it was
trained on, and on harder ones. The second collects what they wrote; any other run folders with reports
of ``captioner ground`` on generated scenes can be among them.
"""

import argparse
import json
import shlex
import sys
from pathlib import Path
from typing import Any

from captioner.files import write_text
from captioner.provenance import provenance

ATTENTION = "--model.decoder.init_args.attention"
SCORE = f"{ATTENTION}.init_args.score"
LAW = f"{ATTENTION}.init_args.distribution"
OBJECTIVE = "--model.objective"
SUPERVISION = f"{OBJECTIVE}.init_args.supervision"
MECHANISMS: dict[str, list[str]] = {
    "additive": [],
    "dot": [f"{SCORE}=Dot"],
    "scaled-dot": [f"{SCORE}=ScaledDot"],
    "general": [f"{SCORE}=General"],
    "general-scaled": [f"{SCORE}=General", f"{SCORE}.init_args.scale=sqrt"],
    "concat": [f"{SCORE}=Concat"],
    "distance": [f"{SCORE}=Distance"],
    "sparsemax": [f"{LAW}=Sparsemax"],
    "hard": [
        f"{LAW}=Hard",
        f"{OBJECTIVE}=LowerBound",
        f"{OBJECTIVE}.init_args.samples=2",
        f"{OBJECTIVE}.init_args.baseline=leave_one_out",
        f"{OBJECTIVE}.init_args.credit=to_go",
        f"{OBJECTIVE}.init_args.doubly_stochastic=0.0",
    ],
    "hard-straight-through": [f"{LAW}=Hard", f"{LAW}.init_args.gradient=straight_through"],
    "local-m": [f"{LAW}=LocalM"],
    "local-p": [f"{LAW}=LocalP"],
    "local-2d": [f"{LAW}=LocalP2D"],
    "multi-head": [
        f"{ATTENTION}=MultiHead",
        f"{ATTENTION}.init_args.heads=4",
        f"{ATTENTION}.init_args.dim=256",
    ],
    "lstmn": ["--model.decoder.init_args.intra=true"],
    "input-feeding": ["--model.decoder.init_args.input_feeding=true"],
    "show-attend-tell": [
        "--model.decoder=LSTMDecoder",
        "--model.decoder.init_args.hidden=256",
        "--model.decoder.init_args.embedding=128",
        "--model.decoder.init_args.dropout=0.1",
    ],
    "transformer": [
        "--model.decoder=TransformerDecoder",
        "--model.decoder.init_args.dim=256",
        "--model.decoder.init_args.layers=2",
        "--model.decoder.init_args.heads=4",
        "--model.decoder.init_args.feed_forward=512",
        f"{ATTENTION}=MultiHead",
        f"{ATTENTION}.init_args.heads=4",
        f"{ATTENTION}.init_args.dim=256",
        "--model.learning_rate=0.001",
    ],
    "additive-supervised": [f"{SUPERVISION}=0.5"],
}
SCENES = 200
HARDER = ("level=varied", "max_objects=5")
FORCED = ("pointing", "discrimination", "mass")  # of reference captions, the same for all


def commands(folder: Path, harder: list[str]) -> list[str]:
    """The lines to run, in order."""
    lines = []
    for name, options in MECHANISMS.items():
        run = folder / name
        fit = ["fit", "--config", "configs/shapes.yaml", f"--trainer.default_root_dir={run}"]
        lines.append([*fit, "--trainer.max_epochs=4", *options])
        for file, more in (("ground", []), ("harder", ["--scene-options", *harder])):
            ground = ["ground", "--model", str(run), "--scenes", str(SCENES), *more]
            lines.append([*ground, "--output", str(run / "results" / f"{file}.json")])
    return [shlex.join(["captioner", *line]) for line in lines]


def row(run: Path) -> dict[str, Any]:
    """What a run folder says of itself."""
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
    there = {"captioner fit": "cider" in found, "captioner ground": bool(found["reports"])}
    if missing := " and ".join(name for name, known in there.items() if not known):
        sys.exit(f"'{run}' has no results of {missing}; --commands prints how to get them")
    return found


def report(record: dict[str, Any]) -> dict[str, Any]:
    """What the table has of a report of ``captioner ground``."""
    forced, generated = (record["regimes"].get(name, {}) for name in ("forced", "generated"))
    scores = forced.get("scores", {})
    return {
        **{name: scores["model"][name] for name in FORCED if scores},
        **{name: forced[name] for name in ("map_entropy", "map_grad_cam") if name in forced},
        **{name: generated.get("objects", {}).get(name) for name in ("true_captions", "chair_i")},
        "grid": forced.get("grid"),
        "command": record["command"],
        "commit": record["commit"],
    }


def main(arguments: list[str] | None = None) -> None:
    """Prints the commands, or collects."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders")
    parser.add_argument("--commands", type=Path, metavar="DIR", help="print what makes runs there")
    parser.add_argument(
        "--harder", nargs="+", default=list(HARDER), metavar="NAME=VALUE", help="of the scenes"
    )
    parser.add_argument("--output", type=Path, help="docs/results/mechanisms.json")
    options = parser.parse_args(arguments)
    if options.commands is not None:
        print("\n".join(commands(options.commands, options.harder)))
        return
    if not options.runs or options.output is None:
        parser.error("give run folders and --output FILE, or --commands DIR")
    order = list(MECHANISMS)
    runs = {run.resolve().name: run for run in options.runs}
    names = sorted(runs, key=lambda name: order.index(name) if name in order else len(order))
    found = {name: row(runs[name]) for name in names}
    record = {"command": shlex.join(["python", *sys.argv]), "mechanisms": found, **provenance()}
    write_text(options.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{len(found)} mechanisms written to {options.output}")


if __name__ == "__main__":
    main()
