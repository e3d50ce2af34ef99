"""Write files that show where the model looked for each word.

captioner explain photo.jpg --output attention
captioner explain holiday/ --output attention --formats png gif html
captioner explain photo.jpg --output attention --caption 'a dog on the beach'
captioner explain photo.jpg --output occlusion --method occlusion
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.cli.arguments import add_inputs, add_method, add_overwrite, number, positive, text
from captioner.cli.outputs import check_files, check_folder, model_files
from captioner.cli.progress import loading, report_failures
from captioner.errors import ImageError, UsageError, printable
from captioner.limits import SHARE, SIGNED
from captioner.overlay import export
from captioner.photos.paths import find

if TYPE_CHECKING:
    from captioner.photos.images import Photo

ADVANCED = ("batch_size", "beam_size", "overwrite", "scale", "smoothing", "layer", "head", "sign")
STYLE = (
    *("opacity", "scale", "smoothing", "layer", "head", "look", "contours"),
    *("content_words", "sign"),
)
DETAILED = {"png", "npz"}  # formats with layers and heads, or with the attention to earlier words


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``explain``."""
    add_inputs(parser, batch_size=8)  # decoded photos, which take 36 MB each at 12 megapixels
    add = parser.add_argument
    add("--output", required=True, metavar="DIR", help="folder for the files")
    add_overwrite(parser)
    names, default = export.names(), ["png", "html"]
    about = f"file formats: {' '.join(names)}"
    add("--formats", nargs="+", choices=names, default=default, metavar="FORMAT", help=about)
    about = "explain this sentence, not the model's caption"
    add("--caption", type=text, metavar="SENTENCE", help=about)
    about = "opacity of the colours on the photo, 0 to 1"
    add("--opacity", type=number(SHARE), default=0.8, help=about)
    about = "glow: colour the regions that get more than an even share of attention; paper: a grey "
    about += "photo under a map from black to white, as in Xu et al. 2015"
    add("--style", dest="look", choices=("glow", "paper"), default="glow", help=about)
    add("--contours", action="store_true", help="draw a line at half of the colour scale")
    add("--content-words", action="store_true", help="leave words like 'a' and 'of' out of figures")
    about = "one colour scale for all words of a caption, or one for each word"
    add("--scale", choices=("shared", "own"), default="shared", help=about)
    about = "interpolation between cells in images; JSON, NPZ and CSV are never smoothed"
    add("--smoothing", choices=("bicubic", "gaussian", "none"), default="bicubic", help=about)
    for name in ("layer", "head"):
        about = f"show one {name} of a decoder with several; the first is 1"
        add(f"--{name}", type=_index, metavar="N", help=about)
    add_method(parser)
    about = "of maps with negative values: regions that make the word more probable, less, or both"
    add("--sign", choices=("positive", "negative", "absolute"), default="positive", help=about)


def _index(number: str) -> int:
    return positive(number) - 1


def run(options: argparse.Namespace) -> int:
    """Write the files and return the exit status: 1 if any photo could not be read, else 0."""
    if options.sign != "positive" and options.method not in SIGNED:
        raise UsageError(f"--sign needs --method {' or '.join(SIGNED)}")
    paths = find(options.inputs)
    bases = _output_bases(paths, options.output)
    suffixes = export.suffixes(options.formats)
    check_folder(Path(options.output), map(Path, options.inputs))
    files = (Path(base + suffix) for base in bases for suffix in suffixes)
    existing = [file for file in files if file.exists()]
    check_files(existing, options.overwrite, [*paths, *model_files(options.model)])
    with loading():
        from captioner.fast.malloc import keep_memory
        from captioner.files import write_bytes
        from captioner.language.vocabulary import Tokenizer
        from captioner.overlay import Style
        from captioner.predict.load import load

        keep_memory()
        style = Style(**{name: getattr(options, name) for name in STYLE})
        model = load(options.model, options.device)
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
    failed = 0
    for start in range(0, len(paths), options.batch_size):
        batch = slice(start, start + options.batch_size)
        photos = list(map(_read, paths[batch]))
        readable = [photo for photo in photos if not isinstance(photo, ImageError)]
        own = model.captions(readable, decoding, options.batch_size, details)
        for photo, base in zip(photos, bases[batch], strict=True):
            try:
                if isinstance(photo, ImageError):
                    raise photo
                caption = next(own) if options.caption is None else options.caption
                if isinstance(caption, ImageError):
                    raise caption
                caption = model.explain(photo, caption, options.method)
                # Render all files of a photo before writing the first.
                rendered = [export.render(end, caption, photo, style) for end in suffixes]
            except ImageError as error:
                failed += 1
                print(f"captioner: {error}", file=sys.stderr)
                continue
            written = []
            for suffix, content in zip(suffixes, rendered, strict=True):
                if content is not None:
                    written.append(base + suffix)
                    write_bytes(Path(written[-1]), content)
            row = (photo.path, caption.text, " ".join(written))
            print(*(printable(part, 4096) for part in row), sep="\t", flush=True)
    return report_failures(failed, len(paths))


def _read(path: Path) -> "Photo | ImageError":
    from captioner.photos.images import Photo

    try:
        return Photo.read(path)
    except ImageError as error:
        return error


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
