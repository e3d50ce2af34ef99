"""List the shipped configuration files, or copy them.

captioner configs
captioner configs my-configs
"""

import argparse
import shutil
from pathlib import Path

from captioner.cli.arguments import add_overwrite
from captioner.cli.outputs import check_files, check_folder
from captioner.errors import plural
from captioner.resources import shipped_configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configs``."""
    parser.add_argument("folder", nargs="?", help="copy the files into this folder")
    add_overwrite(parser)


def run(options: argparse.Namespace) -> int:
    """List or copy the files and return the exit status."""
    files = shipped_configs()
    if options.folder is None:
        print(*files, sep="\n")
        return 0
    target = Path(options.folder)
    check_folder(target)
    copies = {target.joinpath(*Path(name).parts[1:]): file for name, file in files.items()}
    check_files([copy for copy in copies if copy.exists()], options.overwrite, copies.values())
    for copy, file in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, copy)
    print(f"{plural(len(files), 'file')} copied to {target}")
    return 0
