"""Uploaded photos, which only this package decodes, and the files that the browser downloads."""

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

from captioner.errors import CaptionerError
from captioner.overlay import Style, export
from captioner.photos.images import Source
from captioner.predict.caption import Caption

MAX_FILE = "25mb"  # the largest accepted upload


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


def show_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap an endpoint so that the user sees the errors of this package as one line."""

    @wraps(function)
    def handler(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except CaptionerError as error:
            # The page renders it as HTML, and a file may be named <img …>.
            raise gr.Error(escape(str(error), quote=False), print_exception=False) from error

    return handler


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
