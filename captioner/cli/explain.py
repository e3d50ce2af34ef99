"""Write files that show where the model looked for each word.

captioner explain photo.jpg --output attention
captioner explain holiday/ --output attention --formats png gif html
captioner explain photo.jpg --output attention --caption 'a dog on the beach'
captioner explain photo.jpg --output occlusion --method occlusion
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from captioner.cli.arguments import add_inputs, add_method, add_overwrite, number, positive
from captioner.cli.outputs import check_replaced
from captioner.cli.progress import loading, report_failures
from captioner.errors import ImageError, UsageError, printable
from captioner.limits import SHARE, SIGNED
from captioner.overlay import export
from captioner.photos.paths import find
from captioner.resources import HF

ADVANCED = ("batch_size", "beam_size", "overwrite", "scale", "smoothing", "layer", "head", "sign")
STYLE = (
    *("opacity", "scale", "smoothing", "layer", "head", "look", "contours", "content_words"),
    "sign",
)
DETAILED = {"png", "npz"}  # formats with layers and heads, or with the attention to earlier words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_inputs(parser)
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="folder for the files")
    add_overwrite(parser)
    names, default = export.names(), ["png", "html"]
    text = f"file formats: {' '.join(names)}"
    add("--formats", nargs="+", choices=names, default=default, metavar="FORMAT", help=text)
    add("--caption", metavar="SENTENCE", help="explain this sentence, not the model's caption")
    text = "opacity of the colours on the photo, 0 to 1"
    add("--opacity", type=number(SHARE), default=0.8, help=text)
    text = "glow: colour the regions that get more than an even share of attention; paper: a grey photo "
    text += "under a map from black to white, as in Xu et al. 2015"
    add("--style", dest="look", choices=("glow", "paper"), default="glow", help=text)
    add("--contours", action="store_true", help="draw a line at half of the colour scale")
    add("--content-words", action="store_true", help="leave words like 'a' and 'of' out of figures")
    text = "one colour scale for all words of a caption, or one for each word"
    add("--scale", choices=("shared", "own"), default="shared", help=text)
    text = "interpolation between cells in images; JSON, NPZ and CSV are never smoothed"
    add("--smoothing", choices=("bicubic", "gaussian", "none"), default="bicubic", help=text)
    for name in ("layer", "head"):
        text = f"show one {name} of a decoder with several; the first is 1"
        add(f"--{name}", type=_index, metavar="N", help=text)
    add_method(parser)
    text = "of maps with negative values: regions that make the word more probable, less, or both"
    add("--sign", choices=("positive", "negative", "absolute"), default="positive", help=text)


def _index(text: str) -> int:
    return positive(text) - 1


def run(options: argparse.Namespace) -> int:
    """Write the files and return the exit status: 1 if any photo could not be read, else 0."""
    if options.method != "attention":
        if (options.layer, options.head) != (None, None):
            raise UsageError("--layer and --head choose attention weights: leave out --method")
        if str(options.model).startswith(HF) and options.method != "rollout":
            raise UsageError(f"{options.model} has the methods attention and rollout only")
    if options.sign != "positive" and options.method not in SIGNED:
        raise UsageError(
            f"--sign is for methods with negative values: give --method {' or '.join(SIGNED)}"
        )
    paths = find(options.inputs)
    bases = _output_bases(paths, options.output)
    suffixes = export.suffixes(options.formats)
    # Not Path.resolve, which raises for links in circles.
    inputs = set(map(os.path.realpath, paths))
    for file in (base + suffix for base in bases for suffix in suffixes):
        if os.path.realpath(file) in inputs:
            raise UsageError(f"'{file}' would be overwritten; give another --output folder")
        check_replaced(Path(file), "a map", options.overwrite)
    with loading():
        from captioner.fast.malloc import keep_memory
        from captioner.files import write_bytes
        from captioner.language.vocabulary import Tokenizer
        from captioner.overlay import Style
        from captioner.predict.load import load

        keep_memory()
        model = load(options.model, options.device)
    style = Style(**{name: getattr(options, name) for name in STYLE})
    known = None if model.vocabulary is None else model.vocabulary.words
    for word in Tokenizer()(options.caption or ""):
        if known is not None and word not in known:
            note = f"the model does not know '{printable(word)}' and reads it as <unk>"
            print(f"captioner: {note}", file=sys.stderr)
    decoding = model.decoding.with_options({"beam_size": options.beam_size})
    # Details take a second pass of the decoder.
    chosen = options.layer is not None or options.head is not None
    detailed = chosen or options.method == "rollout" or bool(DETAILED & set(options.formats))
    details = (detailed or model.has_window) and not model.draws_locations
    own = model.captions(paths, decoding, options.batch_size, details)
    failed = 0
    for path, base in zip(paths, bases, strict=True):
        try:
            caption = model.explain(path, options.caption) if options.caption else next(own)
            if isinstance(caption, ImageError):
                raise caption
            caption = model.explain(path, caption, options.method)
            # Render all files of a photo before writing the first.
            rendered = {base + end: export.render(end, caption, None, style) for end in suffixes}
        except ImageError as error:
            failed += 1
            print(f"captioner: {error}", file=sys.stderr)
            continue
        files = {file: content for file, content in rendered.items() if content is not None}
        for file, content in files.items():
            write_bytes(Path(file), content)
        row = (str(path), caption.text, " ".join(files))
        print(*(printable(part, 4096) for part in row), sep="\t", flush=True)
    return report_failures(failed, len(paths))


def _output_bases(paths: Sequence[Path], folder: str) -> list[str]:
    """Return for each image the path of its files without suffix.

    Images with the same name are numbered in their order, ignoring case as some file systems do.
    """
    taken: set[str] = set()
    bases = []
    for path in paths:
        name, number = path.stem, 1
        while taken & (files := {(name + suffix).casefold() for suffix in export.FORMATS}):
            number += 1
            name = f"{path.stem}-{number}"
        taken |= files
        bases.append(str(Path(folder) / name))
    return bases
