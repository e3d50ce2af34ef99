"""Compare mechanisms of attention on generated scenes: what they learn, and where they look.

python scripts/mechanisms_table.py --commands runs/mechanisms > all.sh && sh all.sh
python scripts/mechanisms_table.py runs/mechanisms/* --output docs/results/mechanisms.json
python scripts/results_page.py

The first line prints, for each mechanism of ``MECHANISMS``, a training that differs from
``configs/shapes.yaml`` in the named options, and two runs of ``captioner ground``: on scenes like those
it was trained on, and on harder ones. The second line collects their results.
"""

import argparse
import json
import shlex
import sys
import tomllib
from pathlib import Path
from typing import Any

from captioner.files import write_text
from captioner.provenance import provenance

TABLE: dict[str, str] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
MECHANISMS = {name: [f"--model.{o}" for o in line.split()] for name, line in TABLE.items()}
HARDER = ("max_objects=6",)
FORCED = ("pointing", "discrimination", "mass")  # measured on reference captions


def commands(folder: Path) -> list[str]:
    """Return the lines to run, in order."""
    lines = []
    for name, options in MECHANISMS.items():
        run = folder / name
        fit = ["fit", "--config", "configs/shapes.yaml", f"--trainer.default_root_dir={run}"]
        lines.append([*fit, "--trainer.max_epochs=4", *options])
        for file, more in (("ground", []), ("harder", ["--scene-options", *HARDER])):
            output = ["--output", str(run / "results" / f"{file}.json")]
            lines.append(["ground", "--model", str(run), "--scenes=200", *more, *output])
    return [shlex.join(["captioner", *line]) for line in lines]


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
    if not found["reports"] or "cider" not in found:
        missing = "captioner ground" if "cider" in found else "captioner fit"
        sys.exit(f"'{run}' has no results of {missing}; --commands prints how to get them")
    return found


def report(record: dict[str, Any]) -> dict[str, Any]:
    """Return what the table needs of a report."""
    forced, generated = (record["regimes"].get(name, {}) for name in ("forced", "generated"))
    scores = forced.get("scores", {})
    return {
        **{name: scores["model"][name] for name in FORCED if scores},
        "map_entropy": forced.get("map_entropy"),
        **{name: generated.get("objects", {}).get(name) for name in ("true_captions", "chair_i")},
        **{name: record[name] for name in ("command", "commit")},
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the commands, or collect the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run folders")
    parser.add_argument(
        "--commands", type=Path, metavar="DIR", help="print commands for runs there"
    )
    parser.add_argument("--output", type=Path, help="docs/results/mechanisms.json")
    options = parser.parse_args(arguments)
    if options.commands is not None:
        print("\n".join(commands(options.commands)))
        return
    if not options.runs or options.output is None:
        parser.error("expected run folders and --output FILE, or --commands DIR")
    order = list(MECHANISMS)
    runs = {run.resolve().name: run for run in options.runs}
    names = sorted(runs, key=lambda name: order.index(name) if name in order else len(order))
    found = {name: row(runs[name]) for name in names}
    record = {"command": shlex.join(["python", *sys.argv]), "mechanisms": found, **provenance()}
    write_text(options.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    print(f"{len(found)} mechanisms written to {options.output}")


if __name__ == "__main__":
    main()
