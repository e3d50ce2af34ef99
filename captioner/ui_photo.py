"""A photo as the page takes it: uploaded, pasted or from the camera; decoded by this package alone."""

from abc import ABCMeta
from collections.abc import Callable
from functools import wraps
from html import escape
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import gradio as gr
from gradio.data_classes import ImageData
from gradio.utils import get_upload_folder

from captioner.errors import CaptionerError

P = ParamSpec("P")
R = TypeVar("R")

MAX_FILE = "25mb"
"""The largest upload taken."""


class _NoStub(type(gr.Image)):  # type: ignore[misc]
    """Gradio's metaclass writes a stub beside the file of every component, here into the package."""

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> "_NoStub":
        return ABCMeta.__new__(cls, name, bases, namespace)


class PhotoInput(gr.Image, metaclass=_NoStub):
    """Gradio's picture component, which hands over the uploaded file as it came.

    Gradio's own opens the file first, with whatever codec it finds, and answers a damaged one with an
    internal error. It would also fetch a web address for the visitor: this one reads uploads only.
    """

    def get_block_name(self) -> str:
        """The name of the component in the browser."""
        return "image"

    def preprocess(self, payload: ImageData | None) -> str | None:
        """The path of the upload, nothing read yet.

        Gradio lets only uploads pass, but looks for them by a mark that a forged request leaves out.
        """
        if payload is None or payload.path is None:
            return None
        if not Path(payload.path).resolve().is_relative_to(Path(get_upload_folder()).resolve()):
            raise gr.Error("that is no photo uploaded here; upload it", print_exception=False)
        return payload.path

    async def async_move_resource_to_block_cache(
        self, url_or_file_path: str | Path | None
    ) -> str | None:
        """Refuses web addresses; a file in the upload folder stays where it is."""
        if str(url_or_file_path).startswith(("http://", "https://")):
            raise gr.Error(
                "web addresses are not fetched; download the photo and upload it",
                print_exception=False,
            )
        path: str | None = await super().async_move_resource_to_block_cache(url_or_file_path)
        return path


def explained(function: Callable[P, R]) -> Callable[P, R]:
    """What this package raises on purpose, as the one line that the visitor sees."""

    @wraps(function)
    def with_message(*arguments: P.args, **named: P.kwargs) -> R:
        try:
            return function(*arguments, **named)
        except CaptionerError as error:
            # The page renders messages as HTML, and a file may be named <img …>.
            raise gr.Error(escape(str(error), quote=False), print_exception=False) from error

    return with_message
