"""List the shipped configuration files, or copy them.

captioner configs
captioner configs my-configs
"""

import argparse
import shutil
from pathlib import Path

from captioner.errors import UsageError
from captioner.resources import shipped_configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configs``."""
    parser.add_argument("folder", nargs="?", help="copy the files into this folder")


def run(options: argparse.Namespace) -> int:
    """List or copy the files and return the exit status."""
    files = shipped_configs()
    if options.folder is None:
        print(*files, sep="\n")
        return 0
    target = Path(options.folder)
    if target.exists() and not target.is_dir():
        raise UsageError(f"'{target}' is a file; give the folder to copy into")
    copies = {target.joinpath(*Path(name).parts[1:]): file for name, file in files.items()}
    if existing := [copy for copy in copies if copy.exists()]:
        raise UsageError(f"'{existing[0]}' exists already; give an empty or a new folder")
    for copy, file in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    print(f"{len(copies)} files copied to {target}")
    return 0
