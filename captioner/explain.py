"""``captioner explain``: pictures in, files out that show where the model looked for each word.

Nothing heavy is imported before ``run``; the command line's help needs the options only.
"""

import argparse
import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.errors import ImageError, UsageError

if TYPE_CHECKING:
    from PIL import Image

    from captioner.overlay import Style
    from captioner.predictor import Caption, Predictor

FORMATS = ("png", "gif", "html", "json", "npz")
PAST = ".past"  # what the picture of earlier words has at the end of its name


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options that only ``explain`` has."""
    parser.add_argument("--output", required=True, metavar="DIR", help="folder to write into")
    parser.add_argument(
        "--formats",
        nargs="+",
        choices=FORMATS,
        default=["png", "html"],
        metavar="FORMAT",
        help=f"what to write: {' '.join(FORMATS)}",
    )
    parser.add_argument(
        "--caption",
        default=argparse.SUPPRESS,
        metavar="SENTENCE",
        help="explain this sentence instead of the model's own",
    )
    parser.add_argument(
        "--opacity", type=float, default=0.6, help="of the colours on the photo, 0 to 1"
    )
    parser.add_argument(
        "--scale",
        choices=("shared", "own"),
        default="shared",
        help="one scale for all words of a caption, or each word its own",
    )
    parser.add_argument(
        "--smoothing",
        choices=("bicubic", "gaussian", "none"),
        default="bicubic",
        help="of pictures; numbers are always those of the grid",
    )
    for name in ("layer", "head"):
        parser.add_argument(
            f"--{name}",
            type=int,
            default=argparse.SUPPRESS,
            help=f"show one {name} of a decoder that has several; the first is 1",
        )


def run(options: argparse.Namespace) -> int:
    """Writes the files; the exit status: 0 done, 1 some pictures could not be read."""
    from captioner import predictor
    from captioner.files import write_bytes
    from captioner.overlay import Style
    from captioner.paths import find

    given = vars(options)
    # People count from 1, indices from 0.
    chosen = {name: given[name] - 1 for name in ("layer", "head") if name in given}
    style = Style(options.opacity, options.scale, options.smoothing, **chosen)
    paths = find(options.inputs)
    bases = _names(paths, Path(options.output))
    formats = sorted(set(options.formats), key=FORMATS.index)
    _spare_inputs(paths, bases, formats)
    model = predictor.load(options.model, options.device)
    failed = 0
    for path, base, result in zip(paths, bases, _captions(model, paths, given), strict=True):
        try:
            if isinstance(result, ImageError):
                raise result
            # All of a picture's files are made before the first is written.
            files = {_file(base, end): data for end, data in _render(result, formats, style)}
        except ImageError as error:
            failed += 1
            print(f"captioner: {error}", file=sys.stderr)
            continue
        for file, data in files.items():
            write_bytes(file, data)
        print(path, result.text, " ".join(map(str, files)), sep="\t", flush=True)
    if failed:
        print(f"captioner: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def _captions(
    model: "Predictor", paths: Sequence[Path], given: dict[str, object]
) -> Iterator["Caption | ImageError"]:
    """The model's own captions, or what it makes of the sentence given."""
    if "caption" not in given:
        search = {name: given[name] for name in ("beam_size",) if name in given}
        yield from model.captions(
            paths, model.decoding.with_options(search), int(str(given["batch_size"])), details=True
        )
        return
    for path in paths:
        try:
            yield model.explain(path, str(given["caption"]))
        except ImageError as error:
            yield error


def _names(paths: Iterable[Path], folder: Path) -> list[Path]:
    """For each picture the path of its files without their endings; no two share a file.

    Pictures of the same name, in two folders or two formats, are numbered in their order.
    """
    taken: set[str] = set()
    names = []
    for path in paths:
        name, number = path.stem, 1
        # Some file systems take Dog and dog for the same.
        while taken & (files := {name.casefold(), (name + PAST).casefold()}):
            number += 1
            name = f"{path.stem}-{number}"
        taken |= files
        names.append(folder / name)
    return names


def _spare_inputs(paths: Iterable[Path], bases: Iterable[Path], formats: Iterable[str]) -> None:
    """Refuses to write over a picture that is to be read, or into what is no folder.

    Raises:
        UsageError: that is what the call asks for.
    """
    inputs = {path.resolve() for path in paths}
    ends = [*(f".{form}" for form in formats), f"{PAST}.png"]
    for base in bases:
        if any(parent.exists() and not parent.is_dir() for parent in base.parents):
            raise UsageError(f"cannot write to '{base.parent}': it is no folder; give a new one")
        for file in (_file(base, end) for end in ends):
            if file.resolve() in inputs:
                raise UsageError(f"'{file}' would be written over; give another --output folder")


def _file(base: Path, end: str) -> Path:
    """Not Path.with_suffix: a name may have dots of its own."""
    return base.with_name(base.name + end)


def _render(
    caption: "Caption", formats: Sequence[str], style: "Style"
) -> Iterator[tuple[str, bytes]]:
    """The end of each file's name and its content."""
    from captioner import overlay
    from captioner.images import load

    photo = load(str(caption.image))
    for form in formats:
        match form:
            case "png":
                yield ".png", _png(overlay.figure(caption, photo, style))
                if caption.past is not None:
                    yield f"{PAST}.png", _png(overlay.past(caption, style.layer))
            case "gif":
                yield ".gif", overlay.animation(caption, photo, style)
            case "html":
                yield ".html", overlay.page([caption], [photo], style).encode()
            case "json":
                yield ".json", json.dumps(overlay.record(caption, style)).encode() + b"\n"
            case "npz":
                yield ".npz", overlay.npz(caption, style)


def _png(picture: "Image.Image") -> bytes:
    stream = BytesIO()
    picture.save(stream, "PNG")
    return stream.getvalue()
