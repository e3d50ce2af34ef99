"""Uploads, which only this package decodes; downloads; and what a wrong request is answered."""

import tempfile
from abc import ABCMeta
from collections.abc import Callable
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.component_meta import ComponentMeta
from gradio.data_classes import ImageData
from gradio.utils import get_upload_folder
from PIL import Image

from captioner.errors import CaptionerError, UsageError, one_line
from captioner.overlay import Style, export
from captioner.photos.images import Source
from captioner.predict.caption import Caption

MAX_FILE = "25mb"  # the largest accepted upload
TYPES: Any = {"string": str, "number": int | float, "integer": int | float}  # by JSON schema


class _WithoutStub(ComponentMeta):
    # ComponentMeta.__new__ would write a .pyi file next to this source. The rest of it prepares events
    # and constructors, which are inherited.
    def __new__(cls, name: str, bases: tuple[type, ...], attributes: dict[str, Any]) -> Any:
        return ABCMeta.__new__(cls, name, bases, attributes)


class PhotoInput(gr.Image, metaclass=_WithoutStub):
    """Gradio's image component, but it returns the path of the upload without decoding it.

    Gradio would decode the file with any codec, answer a damaged file with an internal error, and
    download web addresses.
    """

    is_template = True  # use the front end of gr.Image

    def preprocess(self, payload: ImageData | None) -> str | None:
        """Return the path of the upload."""
        if payload is None or payload.path is None:
            return None
        # Gradio refuses other files of the server only if the request marks the path as a file.
        if not Path(payload.path).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
            text = "web addresses and paths are not read; download the photo and upload it"
            raise gr.Error(text, print_exception=False)
        return payload.path

    async def async_move_resource_to_block_cache(self, path: Any) -> Any:
        """Return the path: uploads stay where they are, and nothing is downloaded."""
        return path


class Page(gr.Blocks):
    """A page that answers wrong inputs of an endpoint in one line, without a traceback in the log."""

    async def preprocess_data(self, block_fn: Any, inputs: list[Any], *options: Any) -> Any:
        """Check the inputs and convert them to what the function takes."""
        try:
            if block_fn.api_visibility == "public":
                for block, value in zip(block_fn.inputs, inputs, strict=False):
                    kind = block.api_info()["type"]
                    if not isinstance(value, TYPES.get(kind, dict | None)):
                        raise UsageError(f"{block.label} must be of type {kind}, got {value!r:.40}")
            return await super().preprocess_data(block_fn, inputs, *options)
        except Exception as error:  # Gradio's components can raise anything
            wrong = "an input is missing or has the wrong form; the API page shows what each takes"
            raise _shown(
                error if isinstance(error, gr.Error | CaptionerError) else wrong
            ) from error


def show_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an endpoint so that the user sees the errors of this package as one line."""

    @wraps(function)
    def handler(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except CaptionerError as error:
            raise _shown(error) from error

    return handler


def _shown(problem: Exception | str) -> gr.Error:
    """Return the error that the page renders as HTML; a file may be named <img …>."""
    text = problem.message if isinstance(problem, gr.Error) else str(problem)
    return gr.Error(escape(one_line(text), quote=False), print_exception=False)


def write_export(caption: Caption, photo: Source, name: str, style: Style) -> str:
    """Write the main file of an export format and return its path."""
    file = _new_file(caption, f".{name}")
    file.write_bytes(export.render(f".{name}", caption, photo, style) or b"")
    return str(file)


def write_image(image: Image.Image, caption: Caption) -> str:
    """Write an image as PNG and return its path."""
    file = _new_file(caption, ".png")
    image.save(file)
    return str(file)


def _new_file(caption: Caption, suffix: str) -> Path:
    """Return a path named after the photo in a new folder that Gradio serves and later deletes."""
    folder = Path(tempfile.mkdtemp(dir=get_upload_folder()))
    return folder / (Path(caption.image or "").stem + suffix)
