"""The named endpoints of the app. They keep no state between calls.

    from gradio_client import Client, handle_file
    Client("http://127.0.0.1:7860").predict(handle_file("dog.jpg"), api_name="/caption")

An empty sentence stands for the model's own caption. Words, layers and heads are counted from 0.
Layer or head -1 means the average over all. Beam size or length penalty -1 means the model's own. With
count -1, the way ``beam`` returns as many captions as the model's beam; the other ways return five.
"""

from collections.abc import Callable
from inspect import signature
from math import exp
from typing import Any, get_args

import gradio as gr

from captioner import overlay
from captioner.app.panel import ALL, select, style_of
from captioner.app.served_models import (
    CONCURRENCY,
    MAX_BEAM,
    MAX_COUNT,
    MAX_PENALTY,
    OWN,
    TEMPERATURE,
    TOP_P,
    WAYS,
    Models,
    read,
    several,
)  # fmt: skip
from captioner.app.upload import PhotoInput, show_errors, write_export, write_image
from captioner.limits import SEED
from captioner.overlay import Style, export
from captioner.overlay.style import Scale, Smoothing
from captioner.search.options import Decoding

Number = float | int  # JSON writes 1.0 as 1


class Endpoints:
    """The endpoints as methods; the API page shows their names, parameters and docstrings."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def models(self) -> list[str]:
        """List the names of the models, the default first."""
        return self._models.names

    def caption(
        self, photo: str | None, model: str, beam_size: int, length_penalty: Number
    ) -> dict[str, Any]:
        """Caption a photo: a record of `captioner caption --format jsonl`, and the alternatives."""
        answer = self._models.answer(
            read(photo), model, "", beam_size, length_penalty, details=False
        )
        alternatives = [
            {"caption": c.text, "log_prob": round(c.log_prob, 4), "score": round(exp(c.score), 4)}
            for c in answer.captions[1:]
        ]
        return answer.caption.to_dict() | {"alternatives": alternatives}

    def captions(
        self, photo: str | None, model: str, way: str, count: int, length_penalty: Number,
        diversity: Number, temperature: Number, top_p: Number, seed: int,
    ) -> list[dict[str, Any]]:  # fmt: skip
        """Caption a photo several times, best first, by beam search, diverse beam search or sampling.

        The records are those of `/caption`. The way is `beam`, `diverse` or `sampled`.
        """
        more = several(way, count, diversity, temperature, top_p, seed)
        answer = self._models.answer(
            read(photo), model, length_penalty=length_penalty, details=False, more=more
        )
        return [caption.to_dict() for caption in answer.captions]

    def explain(
        self, photo: str | None, sentence: str, model: str, layer: int, head: int
    ) -> dict[str, Any]:
        """Return the attention weights of each word, as `captioner explain` writes them to JSON."""
        answer = self._models.answer(read(photo), model, sentence)
        return overlay.record(answer.caption, Style(layer=select(layer), head=select(head)))

    def redraw(self, photo: str | None, sentence: str, model: str) -> dict[str, Any]:
        """Like /explain, but hard attention samples new cells in each call."""
        decoded = read(photo)
        text = sentence.strip() or self._models.answer(decoded, model).caption.text
        return overlay.record(self._models.redraw(decoded, text, model))

    def overlay(
        self, photo: str | None, word: int, sentence: str, model: str, opacity: Number,
        scale: Any, smoothing: Any, layer: int, head: int,
    ) -> str:  # fmt: skip
        """Draw the attention map of one word on the photo, as a PNG file of the same size."""
        style = style_of(layer, head, opacity, scale, smoothing)
        answer = self._models.answer(read(photo), model, sentence)
        return write_image(overlay.blend(answer.caption, word, answer.photo, style), answer.caption)

    def export(
        self, photo: str | None, form: str, sentence: str, model: str, opacity: Number,
        scale: Any, smoothing: Any, layer: int, head: int,
    ) -> str:  # fmt: skip
        """Export the attention maps of all words as one file."""
        answer = self._models.answer(read(photo), model, sentence)
        style = style_of(layer, head, opacity, scale, smoothing)
        return write_export(answer.caption, answer.photo, form, style)

    def past(self, photo: str | None, sentence: str, model: str, layer: int, head: int) -> str:
        """Draw how much each word attends to the earlier words, as a PNG file."""
        caption = self._models.answer(read(photo), model, sentence).caption
        return write_image(overlay.word_attention(caption, select(layer), select(head)), caption)


def add_endpoints(models: Models) -> None:
    """Add the endpoints to the page that is being built; their inputs and outputs are hidden."""
    api, names = Endpoints(models), models.names
    with gr.Row(visible=False):
        trigger = gr.Button()
        inputs = (
            PhotoInput(label="photo", type="filepath"),
            gr.Dropdown(names, value=names[0], label="model"),
            gr.Number(OWN, precision=0, minimum=OWN, maximum=MAX_BEAM, label="beam_size"),
            gr.Number(OWN, minimum=OWN, maximum=MAX_PENALTY, label="length_penalty"),
            gr.Radio(list(WAYS), value="beam", label="way"),
            gr.Number(OWN, precision=0, minimum=OWN, maximum=MAX_COUNT, label="count"),
            gr.Number(Decoding.diversity, minimum=0, label="diversity"),
            gr.Number(TEMPERATURE, minimum=0, label="temperature"),
            gr.Number(TOP_P, minimum=0, maximum=1, label="top_p"),
            gr.Number(0, precision=0, minimum=SEED.low, maximum=SEED.high, label="seed"),
            gr.Textbox("", label="sentence"),
            gr.Number(0, precision=0, label="word"),
            gr.Radio(export.names(), value="png", label="form"),
            gr.Slider(0, 1, Style.opacity, label="opacity"),
            gr.Radio(list(get_args(Scale)), value=Style.scale, label="scale"),
            gr.Radio(list(get_args(Smoothing)), value=Style.smoothing, label="smoothing"),
            gr.Number(ALL, precision=0, label="layer"),
            gr.Number(ALL, precision=0, label="head"),
        )
        file, values = gr.File(label="file"), gr.JSON(label="values")
    labelled = {component.label: component for component in inputs}
    outputs: dict[Callable[..., Any], Any] = {
        api.models: values, api.caption: values, api.captions: values, api.explain: values,
        api.redraw: values, api.overlay: file, api.export: file, api.past: file,
    }  # fmt: skip
    for function, output in outputs.items():
        trigger.click(
            show_errors(function),
            [labelled[name] for name in signature(function).parameters],
            output,
            api_name=function.__name__,
            concurrency_id="model",
            concurrency_limit=CONCURRENCY,
        )
