"""List the shipped configuration files, or copy them.

captioner configs
captioner configs my-configs
"""

import argparse
import shutil
from pathlib import Path

from captioner.errors import UsageError, plural
from captioner.resources import shipped_configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configs``."""
    parser.add_argument("folder", nargs="?", help="copy the files into this new or empty folder")


def run(options: argparse.Namespace) -> int:
    """List or copy the files and return the exit status."""
    files = shipped_configs()
    if options.folder is None:
        print(*files, sep="\n")
        return 0
    target = Path(options.folder)
    if not target.absolute().parent.is_dir():
        raise UsageError(f"cannot make '{target}': the folder '{target.parent}' does not exist")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        found = "is not empty" if target.is_dir() else "is a file"
        raise UsageError(f"'{target}' {found}; give an empty or a new folder")
    for name, file in files.items():
        copy = target.joinpath(*Path(name).parts[1:])
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    print(f"{plural(len(files), 'file')} copied to {target}")
    return 0
