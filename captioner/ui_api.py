"""The app for programs: what the page does, as named endpoints that remember nothing between calls.

from gradio_client import Client, handle_file
Client("http://127.0.0.1:7860").predict(handle_file("dog.jpg"), api_name="/caption")
"""

from typing import Any

import gradio as gr

from captioner import overlay
from captioner.errors import UsageError
from captioner.overlay import Style
from captioner.predictor import Caption
from captioner.ui_models import CONCURRENCY, MAX_BEAM, Models, Photo, read
from captioner.ui_panel import ALL, OWN, new_file, one, search, style_of, write
from captioner.ui_photo import PhotoInput, explained


class Endpoints:
    """The functions. Types and texts of the API page are those of their signatures.

    An empty sentence means the model's own caption everywhere; words, layers and heads are counted
    from 0, and layer or head -1 means all of them.

    Args:
        models: what can be asked.
    """

    def __init__(self, models: Models) -> None:
        self._models = models

    @explained
    def models(self) -> list[str]:
        """The names of the models, the default first.

        Returns:
            a list of names.
        """
        return self._models.names

    @explained
    def caption(
        self,
        photo: str | None,
        model: str,
        beam_size: int,
        length_penalty: float | int,  # JSON writes 1.0 as 1
    ) -> dict[str, Any]:
        """Writes a sentence about a photo, as one record of `captioner caption --format jsonl`.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            model: one of those that /models lists.
            beam_size: captions followed at once, from 1 to 20; -1 for the model's own.
            length_penalty: from 0, which prefers short captions, to 3; -1 for the model's own.

        Returns:
            image, caption, words, log_prob, word_log_probs, model; and alternatives: what else the
            beam found, best first.
        """
        asked = search(beam_size, length_penalty)
        found = self._models.caption(_read(photo), model, *asked, details=False)
        others = [{"caption": c.text, "log_prob": round(c.log_prob, 4)} for c in found[1:]]
        return found[0].record() | {"alternatives": others}

    @explained
    def explain(
        self,
        photo: str | None,
        sentence: str,
        model: str,
        layer: int,
        head: int,
    ) -> dict[str, Any]:
        """Where the model looks for each word of a sentence, as `captioner explain` writes it to JSON.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            sentence: what to explain; empty for the model's own caption.
            model: one of those that /models lists.
            layer: of a decoder that has several, from 0; -1 for all.
            head: likewise.

        Returns:
            image, size, grid, caption, model, mechanism, and words: each with word, log_prob, entropy
            in nats and weights (rows × columns).
        """
        _, caption = self._told(photo, sentence, model)
        return overlay.record(caption, Style(layer=one(layer), head=one(head)))

    @explained
    def redraw(self, photo: str | None, sentence: str, model: str) -> dict[str, Any]:
        """The same with the places that hard attention looks at drawn anew in each call.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            sentence: what to explain; empty for the model's own caption.
            model: one whose attention is hard.

        Returns:
            as /explain.
        """
        read_photo, caption = self._told(photo, sentence, model)
        return overlay.record(self._models.redraw(read_photo, caption.text, model))

    @explained
    def overlay(
        self,
        photo: str | None,
        word: int,
        sentence: str,
        model: str,
        opacity: float | int,
        scale: Any,
        smoothing: Any,
        layer: int,
        head: int,
    ) -> str:
        """The photo, at its own size, under the map of one word.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            word: which word of the sentence, from 0.
            sentence: what to explain; empty for the model's own caption.
            model: one of those that /models lists.
            opacity: of the map, from 0 to 1.
            scale: shared by all words, or each word's own.
            smoothing: bicubic; gaussian, as in the paper; or none.
            layer: of a decoder that has several, from 0; -1 for all.
            head: likewise.

        Returns:
            a PNG file.
        """
        read_photo, caption = self._told(photo, sentence, model)
        style = style_of(layer, head, opacity, scale, smoothing)
        file = new_file(read_photo, "png")
        overlay.blend(caption, word, read_photo.picture, style).save(file)
        return str(file)

    @explained
    def export(
        self,
        photo: str | None,
        form: str,
        sentence: str,
        model: str,
        opacity: float | int,
        scale: Any,
        smoothing: Any,
        layer: int,
        head: int,
    ) -> str:
        """All words and their maps in one file.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            form: png, a figure; gif, word after word; html, a page that works without a network; or
                json, the numbers.
            sentence: what to explain; empty for the model's own caption.
            model: one of those that /models lists.
            opacity: of the map, from 0 to 1.
            scale: shared by all words, or each word's own.
            smoothing: bicubic; gaussian, as in the paper; or none.
            layer: of a decoder that has several, from 0; -1 for all.
            head: likewise.

        Returns:
            the file.
        """
        read_photo, caption = self._told(photo, sentence, model)
        style = style_of(layer, head, opacity, scale, smoothing)
        return write(caption, read_photo, form, style)

    @explained
    def past(
        self,
        photo: str | None,
        sentence: str,
        model: str,
        layer: int,
        head: int,
    ) -> str:
        """How much each earlier word counts for each word, of decoders that attend to what they wrote.

        Args:
            photo: JPEG, PNG, WebP, GIF, BMP or TIFF.
            sentence: what to explain; empty for the model's own caption.
            model: one that attends to earlier words.
            layer: of a decoder that has several, from 0; -1 for all.
            head: likewise.

        Returns:
            a PNG file.
        """
        read_photo, caption = self._told(photo, sentence, model)
        file = new_file(read_photo, "png")
        overlay.past(caption, one(layer), one(head)).save(file)
        return str(file)

    def _told(self, photo: str | None, sentence: str, model: str) -> tuple[Photo, Caption]:
        """The photo, and the sentence about it with all there is to say."""
        read_photo = _read(photo)
        if sentence.strip():
            return read_photo, self._models.explain(read_photo, sentence, model)
        return read_photo, self._models.caption(read_photo, model)[0]


def _read(photo: str | None) -> Photo:
    if photo is None:
        raise UsageError("no photo given; upload one")
    return read(photo)


def add_endpoints(models: Models) -> None:
    """Adds the endpoints to the page being built. Nothing of them is seen."""
    endpoints = Endpoints(models)
    with gr.Row(visible=False):
        trigger = gr.Button()
        given = {
            "photo": PhotoInput(label="photo", type="filepath"),
            "model": gr.Dropdown(models.names, value=models.names[0], label="model"),
            "beam_size": gr.Number(
                OWN, precision=0, minimum=OWN, maximum=MAX_BEAM, label="beam size"
            ),
            "length_penalty": gr.Number(OWN, minimum=OWN, maximum=3, label="length penalty"),
            "sentence": gr.Textbox("", label="sentence"),
            "word": gr.Number(0, precision=0, label="word"),
            "form": gr.Radio(["png", "gif", "html", "json"], value="png", label="form"),
            "opacity": gr.Slider(0, 1, Style.opacity, label="opacity"),
            "scale": gr.Radio(["shared", "own"], value="shared", label="scale"),
            "smoothing": gr.Radio(
                ["bicubic", "gaussian", "none"], value="bicubic", label="smoothing"
            ),
            "layer": gr.Number(ALL, precision=0, label="layer"),
            "head": gr.Number(ALL, precision=0, label="head"),
        }
        file, values = gr.File(label="file"), gr.JSON(label="values")
    drawing = ["opacity", "scale", "smoothing", "layer", "head"]
    told = ["sentence", "model"]
    table: list[tuple[Any, list[str], Any]] = [
        (endpoints.models, [], values),
        (endpoints.caption, ["photo", "model", "beam_size", "length_penalty"], values),
        (endpoints.explain, ["photo", *told, "layer", "head"], values),
        (endpoints.redraw, ["photo", *told], values),
        (endpoints.overlay, ["photo", "word", *told, *drawing], file),
        (endpoints.export, ["photo", "form", *told, *drawing], file),
        (endpoints.past, ["photo", *told, "layer", "head"], file),
    ]
    for function, names, output in table:
        trigger.click(
            function,
            [given[name] for name in names],
            output,
            api_name=function.__name__,
            concurrency_id="model",
            concurrency_limit=CONCURRENCY,
        )
