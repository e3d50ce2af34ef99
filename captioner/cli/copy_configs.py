"""List the shipped configuration files, or copy them.

captioner configs
captioner configs my-configs
"""

import argparse
import shutil
from pathlib import Path

from captioner.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``configs``."""
    parser.add_argument("folder", nargs="?", help="copy the files into this folder")


def run(options: argparse.Namespace) -> int:
    """List or copy the files and return the exit status."""
    from captioner.resources import configs_folder

    source = configs_folder()
    files = sorted(file.relative_to(source) for file in source.rglob("*.yaml"))
    if options.folder is None:
        for file in files:
            print(Path("configs") / file)
        return 0
    target = Path(options.folder)
    if target.exists() and not target.is_dir():
        raise UsageError(f"'{target}' is a file; give the folder to copy into")
    if existing := [str(target / file) for file in files if (target / file).exists()]:
        raise UsageError(f"'{existing[0]}' exists already; give an empty or a new folder")
    for file in files:
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / file, target / file)
    print(f"{len(files)} files copied to {target}")
    return 0
