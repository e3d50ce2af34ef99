"""``captioner ground``: does the model look at what it names, and does it matter where it looks?

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner import ground_pictures
from captioner.errors import UsageError
from captioner.ground_pictures import Pictures

if TYPE_CHECKING:
    from captioner.evaluation.tallies import Tally


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only ``ground`` has."""
    ground_pictures.add_arguments(parser)
    parser.add_argument(
        "--regime",
        choices=("both", "forced", "generated"),
        default="both",
        help="whose captions: the references, fed in; or the model's own",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of shuffling, random weights, bootstrap"
    )


def run(options: argparse.Namespace, output: Any) -> int:
    """Prints the tables and writes the report; the exit status: 0 done, 1 some pictures failed.

    Args:
        options: of the command line.
        output: opens the file to write JSON into, or is None.
    """
    from tempfile import TemporaryDirectory

    if options.seed < 0:
        raise UsageError(f"--seed must be 0 or more, got {options.seed}")
    with TemporaryDirectory() as scratch:
        pictures = ground_pictures.pictures(options, Path(scratch))
        report, tallies = _report(options, pictures)
    from captioner.ground_tables import markdown

    print(markdown(report))
    if output is not None:
        import json

        from captioner.evaluation.tallies import ENDING, lines
        from captioner.files import write_text

        # The tallies first: a report with those of another would compare wrongly.
        write_text(Path(options.output).with_suffix(ENDING), lines(tallies))
        with output as stream:
            json.dump(report, stream, indent=2, ensure_ascii=False)
            stream.write("\n")
    for message in report["failed"]:
        print(f"captioner: {message}", file=sys.stderr)
    if report["failed"]:
        lost = f"{len(report['failed'])} of {len(pictures.records)} pictures left out"
        print(f"captioner: {lost}", file=sys.stderr)
    return 1 if report["failed"] else 0


def _report(
    options: argparse.Namespace, pictures: Pictures
) -> tuple[dict[str, Any], "list[Tally]"]:
    """The report, and what each picture adds to its numbers."""
    import torch
    from rich.console import Console
    from rich.progress import track

    from captioner import predictor
    from captioner.errors import EvaluationError
    from captioner.evaluation.faithfulness import measure
    from captioner.evaluation.grounding import grounding
    from captioner.evaluation.mentions import Regime
    from captioner.provenance import provenance

    model = predictor.load(options.model, options.device)
    given = {name: value for name, value in vars(options).items() if name == "beam_size"}
    model.decoding = decoding = model.decoding.with_options(given)
    preprocessing = model.captioner.encoder.preprocessing
    regimes: tuple[Regime, ...] = (
        ("forced", "generated") if options.regime == "both" else (options.regime,)
    )

    def progress(what: str, regime: str) -> Any:
        bar = Console(stderr=True)  # standard output is for the tables
        return lambda batches, total: track(
            batches, f"{what}, {regime} captions", total, console=bar
        )

    found: dict[str, Any] = {}
    tallies: list[Tally] = []
    failed: dict[str, None] = {}
    for regime in regimes:
        torch.manual_seed(options.seed)  # hard attention may draw
        part: dict[str, Any] = {}
        if pictures.masked is not None:
            try:
                part, own = grounding(
                    model.captioner,
                    pictures.masked,
                    regime,
                    decoding=decoding,
                    training=pictures.training,
                    batch_size=options.batch_size,
                    seed=options.seed,
                    progress=progress("grounding", regime),
                )
                tallies += own
            except EvaluationError as error:  # a model may name nothing, and look well all the same
                part = {"error": str(error)}
        faithfulness = measure(
            model,
            pictures.records,
            regime,
            batch_size=options.batch_size,
            seed=options.seed,
            sizes=pictures.sizes,
            progress=progress("faithfulness", regime),
        )
        part["faithfulness"] = faithfulness.as_dict()
        tallies += faithfulness.tallies
        for one in (part, part["faithfulness"]):
            failed |= dict.fromkeys(one.pop("failed", ()))
        found[regime] = part
    report = {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "model": model.name,
        "mechanism": model.captioner.decoder.mechanism,
        "supervised_by_masks": model.supervision,
        "data": pictures.source,
        "transform": f"whole pictures resized to {preprocessing.height} × {preprocessing.width}, "
        "nothing cropped; scored on the model's own grid, nothing smoothed",
        "decoding": vars(decoding),
        "seed": options.seed,
        "regimes": found,
        "failed": list(failed),
        **provenance(),
    }
    return report, tallies
