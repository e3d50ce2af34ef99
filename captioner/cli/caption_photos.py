"""Write captions for photos.

captioner caption photo.jpg holiday/ 'scans/*.tif'
captioner caption holiday/ --model transformer --output captions.csv
captioner caption library/ --output captions/    # any number of photos, resumable
captioner caption holiday/ --write txt           # a text file beside each photo
captioner caption holiday/ --write html          # a page to check and edit the captions
captioner caption holiday/ --output captions.jsonl --num-captions 5 --temperature 0.7
"""

import argparse
import importlib.util
import warnings
from pathlib import Path

from captioner.batch.inputs import INSTALL
from captioner.batch.sidecars import EXISTING, FORMATS
from captioner.cli import caption_outputs as outputs
from captioner.cli.arguments import add_inputs, add_overwrite, add_sampling, number, positive, text
from captioner.cli.writers import SUFFIXES, WRITERS
from captioner.errors import UsageError
from captioner.limits import SHARE

ADVANCED = (
    *("batch_size", "engine", "workers", "shard_size", "retry", "overwrite"),
    *("top_k", "top_p", "min_length", "seed", "diverse_groups", "diversity", "prefix", "suffix"),
)
FOLDER_FORMATS = ("jsonl", "parquet")
FOLDER_OPTIONS = {"shard_size", "retry"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``caption``."""
    add_inputs(parser, batch_size=64)
    add_sampling(parser)
    add, files = parser.add_argument, " ".join(sorted(WRITERS))
    about = f"for a file: {files} (default: by suffix, or text); for a folder: "
    about += f"{' '.join(FOLDER_FORMATS)} (default: jsonl)"
    choices = sorted({*WRITERS, *FOLDER_FORMATS})
    add("--format", choices=choices, default=argparse.SUPPRESS, help=about)
    about = f"file to write, with the ending {' '.join(SUFFIXES)} (default: standard output); or a "
    about += "folder, without such an ending, for shards and a manifest; the same call resumes it"
    add("--output", metavar="FILE|DIR", help=about)
    add_overwrite(parser)
    group = parser.add_argument_group("confidence")
    about = "add the probability that the caption is right, to text and JSON lines; only without "
    about += "options of the search"
    group.add_argument("--confidence", action="store_true", help=about)
    about = "leave captions below this confidence empty; from 0 to 1"
    group.add_argument("--min-confidence", type=number(SHARE), metavar="X", help=about)
    beside = parser.add_argument_group("where the photos are", argument_default=argparse.SUPPRESS)
    about = "txt or xmp: a file beside each photo; embed: XMP inside the photo (JPEG, PNG, WebP or "
    about += "TIFF); html: captions.html in the folder, a page to check and edit all captions"
    beside.add_argument("--write", choices=(*FORMATS, "html"), help=about)
    about = "for photos that have a caption: leave it, add a line, or replace it (default: skip)"
    beside.add_argument("--existing", choices=EXISTING, help=about)
    beside.add_argument("--prefix", type=text, metavar="TEXT", help="text before every caption")
    beside.add_argument("--suffix", type=text, metavar="TEXT", help="text after every caption")
    folder = parser.add_argument_group("options for a folder", argument_default=argparse.SUPPRESS)
    about = "processes on this machine, or Ray Data on a cluster (default: local)"
    folder.add_argument("--engine", choices=("local", "ray"), help=about)
    about = "processes that each load the model (default: one per CPU core, or per GPU)"
    folder.add_argument("--workers", type=positive, metavar="N", help=about)
    about = "records per shard; an interruption loses at most the unfinished one (default: 1000)"
    folder.add_argument("--shard-size", type=positive, metavar="N", help=about)
    about = "retry photos that failed in an earlier call"
    folder.add_argument("--retry", action="store_true", help=about)


def run(options: argparse.Namespace) -> int:
    """Write the captions; return 0, or 1 if some photos could not be read."""
    warnings.filterwarnings("ignore", module="PIL")  # about damaged files that it can read
    given = vars(options)
    if "write" in given:
        return _write_beside(options)
    file_format, is_folder = _destination(options.output, given.get("format"))
    for name in options.inputs:
        if "://" in name and not is_folder:
            raise UsageError(
                f"'{name}' is an address: download the photo, or give an object store and --output DIR/"
            )
    if options.diversity is not None and options.diverse_groups is None:
        raise UsageError("--diversity needs --diverse-groups: give both")
    wrong = FOLDER_OPTIONS & given.keys() if not is_folder else set()
    for name in sorted(wrong | ({"existing", "prefix", "suffix"} & given.keys())):
        needs = "a folder: give --output DIR/" if name in FOLDER_OPTIONS else "--write KIND"
        raise UsageError(f"--{name.replace('_', '-')} needs {needs}, or leave it out")
    for value, package in {"parquet": "pyarrow", "ray": "ray"}.items():
        chosen = value in (file_format, given.get("engine"))
        if chosen and importlib.util.find_spec(package) is None:
            raise UsageError(f"{value} needs {package}: {INSTALL}")
    if is_folder:
        return outputs.write_folder(options, file_format)
    several = (options.num_captions or 1) > 1 and file_format != "jsonl"
    if several or (options.confidence and file_format in ("csv", "coco")):
        option = "--num-captions" if several else "--confidence"
        raise UsageError(f"{option} has no place in {file_format}: give --format jsonl")
    return outputs.write_file(options, file_format)


def _destination(output: str | None, file_format: str | None) -> tuple[str, bool]:
    """Return the format, and whether it is written into a folder: a name without a known ending."""
    if output == "-":
        raise UsageError("cannot write '-': leave --output out to write to standard output")
    path = Path(output or "captions.txt")
    no_suffix = not path.suffix and file_format in (None, *FOLDER_FORMATS)
    is_folder = no_suffix or path.is_dir() or str(output).endswith("/")
    chosen = file_format or ("jsonl" if is_folder else SUFFIXES.get(path.suffix.lower()))
    if chosen is None:
        raise UsageError(
            f"cannot tell the format of '{output}': give --format, a name that ends with "
            f"{', '.join(SUFFIXES)}, or for a folder one that ends with /"
        )
    if chosen not in (FOLDER_FORMATS if is_folder else WRITERS):
        kind = "a folder" if is_folder else "a file"
        raise UsageError(f"{chosen} is not written into {kind}: give another --output or --format")
    return chosen, is_folder


def _write_beside(options: argparse.Namespace) -> int:
    """Write the captions where the photos are; refuse the options of files of captions."""
    wrong = ["engine", "format", "num_captions", "output", "overwrite", *sorted(FOLDER_OPTIONS)]
    if options.write != "html":
        wrong.append("confidence")
    for name in filter(vars(options).get, wrong):
        raise UsageError(
            f"--{name.replace('_', '-')} cannot be used with --write {options.write}: leave it out"
        )
    write = outputs.write_page if options.write == "html" else outputs.write_sidecars
    return write(options)
