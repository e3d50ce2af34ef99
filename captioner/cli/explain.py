"""Write files that show where the model looked for each word.

captioner explain photo.jpg --output attention
captioner explain holiday/ --output attention --formats png gif html
captioner explain photo.jpg --output attention --caption 'a dog on the beach'
"""

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.cli.arguments import add_inputs, number, positive
from captioner.cli.progress import loading, report_failures
from captioner.errors import ImageError, UsageError, printable
from captioner.limits import SHARE
from captioner.overlay.export import formats, names
from captioner.paths import find

if TYPE_CHECKING:
    from captioner.caption import Caption
    from captioner.predictor import Predictor

ADVANCED = ("batch_size", "beam_size", "scale", "smoothing", "layer", "head")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_inputs(parser)
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="folder for the files")
    text, default = f"file formats: {' '.join(names())}", ["png", "html"]
    add("--formats", nargs="+", choices=names(), default=default, metavar="FORMAT", help=text)
    text = "explain this sentence instead of the model's caption"
    add("--caption", metavar="SENTENCE", help=text)
    text = "opacity of the colours on the photo, 0 to 1"
    add("--opacity", type=number(SHARE), default=0.8, help=text)
    text = "glow: colour the regions that get more than an even share of attention; paper: a grey photo "
    text += "under a map from black to white, as in Xu et al. 2015"
    add("--style", choices=("glow", "paper"), default="glow", help=text)
    add("--contours", action="store_true", help="draw a line at half of the colour scale")
    add("--content-words", action="store_true", help="leave words like 'a' and 'of' out of figures")
    text = "one colour scale for all words of a caption, or one for each word"
    add("--scale", choices=("shared", "own"), default="shared", help=text)
    text = "interpolation between cells in images; JSON, NPZ and CSV are never smoothed"
    choices = ("bicubic", "gaussian", "none")
    add("--smoothing", choices=choices, default="bicubic", help=text)
    for name in ("layer", "head"):
        text = f"show one {name} of a decoder with several; the first is 1"
        add(f"--{name}", type=positive, help=text)


def run(options: argparse.Namespace) -> int:
    """Write the files and return the exit status: 1 if any photo could not be read, else 0."""
    paths = find(options.inputs)
    exports = formats(options.formats)
    bases = _output_bases(paths, options.output)
    _check_outputs(paths, [base + export.suffix for base in bases for export in exports])
    with loading():
        from captioner import images, predictor
        from captioner.fast.malloc import keep_memory
        from captioner.files import write_bytes
        from captioner.overlay import Style
        from captioner.text import Tokenizer

    style = Style(
        opacity=options.opacity,
        scale=options.scale,
        smoothing=options.smoothing,
        layer=options.layer and options.layer - 1,
        head=options.head and options.head - 1,
        look=options.style,
        contours=options.contours,
        content_words=options.content_words,
    )
    keep_memory()
    with loading():
        model = predictor.load(options.model, options.device)
    known = set(model.vocabulary.words)
    for word in Tokenizer()(options.caption or ""):
        if word not in known:
            note = f"the model does not know '{printable(word)}' and reads it as <unk>"
            print(f"captioner: {note}", file=sys.stderr)
    failed = 0
    for path, base, caption in zip(paths, bases, _captions(model, paths, options), strict=True):
        try:
            if isinstance(caption, ImageError):
                raise caption
            image = images.load(path)
        except ImageError as error:
            failed += 1
            print(f"captioner: {error}", file=sys.stderr)
            continue
        # Render all files of a photo before writing the first.
        rendered = {
            base + export.suffix: export.render(caption, image, style) for export in exports
        }
        files = {file: content for file, content in rendered.items() if content is not None}
        for file, content in files.items():
            write_bytes(Path(file), content)
        print(path, caption.text, " ".join(files), sep="\t", flush=True)
    return report_failures(failed, len(paths))


def _captions(
    model: "Predictor", paths: Sequence[Path], options: argparse.Namespace
) -> Iterator["Caption | ImageError"]:
    """Yield for each image the model's caption, or the given sentence, or the error."""
    if options.caption is None:
        decoding = model.decoding.with_options({"beam_size": options.beam_size})
        yield from model.captions(paths, decoding, options.batch_size, not model.draws_locations)
        return
    for path in paths:
        try:
            yield model.explain(path, options.caption)
        except ImageError as error:
            yield error


def _output_bases(paths: Sequence[Path], folder: str) -> list[str]:
    """Return for each image the path of its files without suffix.

    Images with the same name are numbered in their order, ignoring case as some file systems do.
    """
    suffixes = [export.suffix for export in formats(names())]
    taken: set[str] = set()
    bases = []
    for path in paths:
        name, number = path.stem, 1
        while taken & (files := {(name + suffix).casefold() for suffix in suffixes}):
            number += 1
            name = f"{path.stem}-{number}"
        taken |= files
        bases.append(str(Path(folder) / name))
    return bases


def _check_outputs(paths: Sequence[Path], files: Sequence[str]) -> None:
    """Raise ``UsageError`` if an input would be overwritten."""
    inputs = set(
        map(os.path.realpath, paths)
    )  # not Path.resolve, which raises for links in circles
    for file in files:
        if os.path.realpath(file) in inputs:
            raise UsageError(f"'{file}' would be overwritten; give another --output folder")
