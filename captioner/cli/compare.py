"""Compare training runs in one table and in plots.

captioner compare runs/soft runs/hard
captioner compare runs/soft runs/hard --output compared
mkdir -p blip/results && captioner ground --model hf:NAME --output blip/results/grounding.json
captioner compare runs/soft blip
"""

import argparse
from pathlib import Path

from captioner.cli.arguments import add_overwrite
from captioner.cli.outputs import check_files, check_folder
from captioner.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``compare``."""
    text = "a run folder, or one with results/*.json; the others are compared with the first"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=text)
    text = "folder for table.md, table.csv, table.json and plots; without it the table is printed"
    parser.add_argument("--output", metavar="DIR", help=text)
    add_overwrite(parser)


def run(options: argparse.Namespace) -> int:
    """Print the table, or write it with the plots; return the exit status."""
    folders = [Path(run) for run in dict.fromkeys(options.runs)]
    if missing := [f"'{folder}'" for folder in folders if not folder.is_dir()]:
        raise UsageError(
            f"no such folder: {', '.join(missing)}; for a model, give the folder F of captioner ground "
            "--model NAME --output F/results/x.json"
        )
    if options.output is not None:
        check_folder(Path(options.output), [folder / "results" for folder in folders])
    from captioner.comparison import formats, plots
    from captioner.comparison.run_results import read_run
    from captioner.comparison.table import compare

    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = list(map(str, folders))
    comparison = compare(dict(zip(names, map(read_run, folders), strict=True)))
    table = formats.markdown(comparison)
    if options.output is None:
        print(table, end="")
        return 0
    from captioner.files import write_bytes

    files = {
        "table.md": table.encode(),
        "table.csv": formats.table_csv(comparison).encode(),
        "table.json": formats.table_json(comparison).encode(),
        **plots.draw(comparison),
    }
    written = {Path(options.output) / name: data for name, data in files.items()}
    check_files([file for file in written if file.exists()], options.overwrite)
    for file, data in written.items():
        write_bytes(file, data)
        print(file)
    return 0
