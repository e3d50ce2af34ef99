"""``captioner compare``: run folders in, one table and plots out.

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from captioner.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of ``compare``."""
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a run folder; the others are set against the first"
    )
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder for table.md, table.csv, table.json and plots; without it the table is printed",
    )
    parser.add_argument(
        "--resamples", type=int, default=2000, help="of the images, for the intervals"
    )
    parser.add_argument("--seed", type=int, default=0, help="of the resamples")


def run(options: argparse.Namespace) -> int:
    """Reads, compares, and prints or writes; the exit status."""
    from captioner.comparison import forms, plots
    from captioner.comparison.results import read_run
    from captioner.comparison.table import compare

    if options.resamples < 1 or options.seed < 0:
        raise UsageError(
            "expected 1 resample or more and a seed from 0, got --resamples "
            f"{options.resamples} and --seed {options.seed}"
        )
    if options.output is not None and Path(options.output).is_file():
        raise UsageError(f"cannot write to '{options.output}': it is a file; give a folder")
    folders = [Path(given) for given in options.runs]
    runs = [read_run(folder, name) for folder, name in zip(folders, names(folders), strict=True)]
    comparison = compare(runs, options.resamples, options.seed)
    table = forms.markdown(comparison)
    if options.output is None:
        print(table, end="")
        return 0
    from captioner.files import write_bytes

    files = {
        "table.md": table.encode(),
        "table.csv": forms.table_csv(comparison).encode(),
        "table.json": forms.table_json(comparison).encode(),
        **plots.draw(comparison),
    }
    for name, data in files.items():
        write_bytes(Path(options.output) / name, data)
        print(Path(options.output) / name)
    return 0


def names(folders: Sequence[Path]) -> list[str]:
    """What a table calls each run: the folder's own name, or its path where two share that."""
    own = [folder.resolve().name for folder in folders]
    found = [
        name if own.count(name) == 1 else str(folder)
        for name, folder in zip(own, folders, strict=True)
    ]
    seen: Counter[str] = Counter()
    for place, name in enumerate(found):
        seen[name] += 1
        if seen[name] > 1:  # the same folder, given again
            found[place] = f"{name} ({seen[name]})"
    return found
