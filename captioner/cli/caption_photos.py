"""Write captions for photos.

captioner caption photo.jpg holiday/ 'scans/*.tif'
captioner caption holiday/ --model transformer --output captions.csv
captioner caption library/ --output captions/    # any number of photos, resumable
captioner caption holiday/ --write txt           # a text file beside each photo
captioner caption holiday/ --write html          # a page to check and edit the captions
captioner caption holiday/ --output captions.jsonl --num-captions 5 --temperature 0.7
"""

import argparse
import warnings

from captioner.batch.sidecars import EXISTING, FORMATS
from captioner.cli import caption_outputs as outputs
from captioner.cli.arguments import (
    FOLDER_OPTIONS,
    add_inputs,
    add_overwrite,
    add_sampling,
    number,
    positive,
    writes_folder,
)
from captioner.cli.writers import WRITERS, format_of
from captioner.errors import UsageError
from captioner.limits import SAMPLING, SHARE

ADVANCED = (
    *("batch_size", "engine", "workers", "shard_size", "retry", "overwrite"),
    *("top_k", "top_p", "min_length", "seed", "diverse_groups", "diversity", "prefix", "suffix"),
)
FOLDER_FORMATS = ("jsonl", "parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``caption``."""
    add_inputs(parser)
    add_sampling(parser)
    add, files = parser.add_argument, " ".join(sorted(WRITERS))
    text = f"for a file: {files} (default: by suffix, or text); for a folder: "
    text += f"{' '.join(FOLDER_FORMATS)} (default: jsonl)"
    choices = sorted({*WRITERS, *FOLDER_FORMATS})
    add("--format", choices=choices, default=argparse.SUPPRESS, help=text)
    text = (
        "file or folder to write (default: standard output). A folder, or a name that ends with /, "
    )
    text += "gets shards and a manifest, and the same call resumes after an interruption. --format "
    text += "parquet and the options below always write a folder"
    add("--output", metavar="FILE|DIR", help=text)
    add_overwrite(parser)
    group = parser.add_argument_group("confidence")
    text = "add the probability that the caption is right, to text and JSON lines; only for the "
    text += "model's own search, without --beam-size, --temperature and the like"
    group.add_argument("--confidence", action="store_true", help=text)
    text = "leave captions below this confidence empty; from 0 to 1"
    group.add_argument("--min-confidence", type=number(SHARE), metavar="X", help=text)
    beside = parser.add_argument_group("where the photos are", argument_default=argparse.SUPPRESS)
    text = "txt: a text file beside each photo; xmp: an XMP file beside it; embed: XMP inside the photo "
    text += "(JPEG, PNG, WebP or TIFF); html: captions.html in the folder, a page to check and edit all "
    text += "captions. A photo that has such a caption keeps it"
    beside.add_argument("--write", choices=(*FORMATS, "html"), help=text)
    text = "for photos that have a caption: leave it, add a line, or replace it (default: skip)"
    beside.add_argument("--existing", choices=EXISTING, help=text)
    beside.add_argument("--prefix", metavar="TEXT", help="text before every caption")
    beside.add_argument("--suffix", metavar="TEXT", help="text after every caption")
    folder = parser.add_argument_group("options for a folder", argument_default=argparse.SUPPRESS)
    text = "processes on this machine, or Ray Data on a cluster (default: local)"
    folder.add_argument("--engine", choices=("local", "ray"), help=text)
    text = "processes that each load the model (default: one per CPU core; on a GPU, one; with Ray, one "
    text += "per GPU)"
    folder.add_argument("--workers", type=positive, metavar="N", help=text)
    text = "records per shard; an interruption loses at most the unfinished one (default: 1000)"
    folder.add_argument("--shard-size", type=positive, metavar="N", help=text)
    text = "retry photos that failed in an earlier call"
    folder.add_argument("--retry", action="store_true", help=text)


def run(options: argparse.Namespace) -> int:
    """Write the captions; return 0, or 1 if some photos could not be read."""
    given = vars(options)
    file_format = given.get("format")
    warnings.filterwarnings("ignore", module="PIL")  # about damaged files that it can read
    for name in options.inputs:
        if name.startswith(("http://", "https://")):
            raise UsageError(f"'{name}' is a web address: download the photo and give the file")
        if name.startswith("file://") and not writes_folder(options):
            raise UsageError(f"'{name}' is the address of a file: give its path, without file://")
        if "://" in name and not writes_folder(options):
            raise UsageError(f"'{name}' is in an object store: give a folder with --output DIR/")
    file = "write" not in options and not writes_folder(options)
    kind = (file_format or format_of(options.output)) if file else ""
    if (options.num_captions or 1) > 1 and file and kind != "jsonl":
        raise UsageError(
            "several captions per photo are written as JSON lines: give --format jsonl"
        )
    beside = given.get("write") in FORMATS
    if options.confidence and (beside or kind in ("csv", "coco")):
        where = f"--write {options.write}" if beside else f"--format {kind}"
        raise UsageError(
            f"--confidence cannot be used with {where}, which has no place for it: give --format text "
            "or jsonl, or only --min-confidence"
        )
    search, sampling = (
        [f"--{name.replace('_', '-')}" for name in names if given[name] is not None]
        for names in (outputs.SEARCH, SAMPLING)
    )
    only = [option for option in search if option != "--min-length"]
    if only and sampling:
        raise UsageError(f"{only[0]} is an option of the search: leave it out with {sampling[0]}")
    if options.beam_size and options.diverse_groups and options.beam_size % options.diverse_groups:
        raise UsageError(
            f"--beam-size {options.beam_size} cannot be divided into --diverse-groups "
            f"{options.diverse_groups}: give a multiple, or leave --beam-size out"
        )
    if options.diversity is not None and options.diverse_groups is None:
        raise UsageError("--diversity needs --diverse-groups: give both")
    if (search or sampling) and (options.confidence or options.min_confidence is not None):
        raise UsageError(
            "the confidence was measured for the model's own search: leave out "
            f"{[*search, *sampling][0]}, or --confidence and --min-confidence"
        )
    if "write" in options:
        return outputs.write_sidecars(options) if beside else outputs.write_page(options)
    if not writes_folder(options):
        return outputs.write_file(options, file_format or format_of(options.output))
    if options.output is None:
        option = min(FOLDER_OPTIONS & given.keys(), default="format parquet").replace("_", "-")
        raise UsageError(f"--{option} writes into a folder: give it with --output DIR")
    if file_format not in (None, *FOLDER_FORMATS):
        raise UsageError(
            f"cannot write '{options.output}': a folder holds {' or '.join(FOLDER_FORMATS)}, not "
            f"{file_format}; give --format, or the name of a file"
        )
    return outputs.write_folder(options, file_format or "jsonl")
