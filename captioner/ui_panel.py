"""One model's side of the page: what it says of the photo, and where it looked for the chosen word."""

import json
import math
import tempfile
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.utils import get_upload_folder
from PIL import Image

from captioner import overlay
from captioner.overlay import Style
from captioner.predictor import Caption
from captioner.ui_models import Models, Photo, read
from captioner.ui_photo import explained

ALL = -1  # the choice "all, averaged" among layers and heads
OWN = -1  # of a way to search: the one that the model was scored with
SHOWN_SIDE = 768
FORMATS = ("png", "gif", "html", "json")

Update = dict[Any, Any]


@dataclass(frozen=True, eq=False)
class Found:
    """What a page keeps of the last photo while it is open.

    Attributes:
        model: who looked.
        photo: a copy no larger than a page shows.
        captions: what the beam found, best first; or the one sentence that was given.
    """

    model: str
    photo: Photo
    captions: tuple[Caption, ...]


def style_of(layer: int, head: int, opacity: float | int, scale: Any, smoothing: Any) -> Style:
    """The page's controls as a style."""
    return Style(float(opacity), scale, smoothing, one(layer), one(head))


def one(number: int) -> int | None:
    """A layer or a head; None for all of them."""
    return None if number == ALL else number


def search(beam_size: int, length_penalty: float | int) -> tuple[int | None, float | None]:
    """How to search; None for what is the model's own."""
    return (
        None if beam_size == OWN else beam_size,
        None if length_penalty == OWN else float(length_penalty),
    )


class Panel:
    """The components of one model and what happens to them; built inside ``gr.Blocks``.

    Every handler returns the components that it changes.

    Args:
        models: what may be asked.
        number: which side of the page; names the components for the style sheet.
    """

    def __init__(self, models: Models, number: int) -> None:
        self.models = models
        self.found = gr.State(None, time_to_live=3600)
        self.hint = gr.HTML("<p>Give it a photo.</p>")
        with gr.Column(visible=False) as self.result:
            self.heading = gr.HTML(elem_classes="heading", padding=False)
            self.words = gr.Radio(
                [],
                label="Caption",
                elem_classes="words",
                elem_id=f"words-{number}",
                interactive=True,
            )
            self.map = _drawing(elem_id=f"map-{number}")
            self.facts = gr.HTML(padding=False, elem_classes="facts", elem_id=f"facts-{number}")
            with gr.Row(visible=False) as self.parts:
                self.layer = gr.Dropdown([("all, averaged", ALL)], value=ALL, label="Layer")
                self.head = gr.Dropdown([("all, averaged", ALL)], value=ALL, label="Head")
            self.redraw = gr.Button("Draw the places again", elem_id=f"redraw-{number}")
            self.others = gr.Radio(
                [],
                label="What the beam found, with its log-probability",
                elem_classes="others",
                elem_id=f"others-{number}",
                interactive=True,
            )
            with gr.Accordion("Every word", open=True):
                self.figure = _drawing()
            with gr.Accordion("Earlier words that each word attends to", open=False) as self.memory:
                self.past = _drawing()
            with gr.Row(elem_classes="downloads"):
                self.buttons = {
                    form: gr.Button(
                        f"Save {form.upper()}", size="sm", min_width=90, elem_id=f"{form}-{number}"
                    )
                    for form in FORMATS
                }
        self.file = gr.DownloadButton(visible="hidden", elem_id=f"file-{number}")

    @property
    def outputs(self) -> list[Any]:
        """All components that a new photo changes."""
        return [
            self.found, self.hint, self.result, self.heading, self.words, self.map, self.facts,
            self.parts, self.layer, self.head, self.redraw, self.others, self.figure, self.memory,
            self.past,
        ]  # fmt: skip

    def blank(self) -> Update:
        """Nothing looked at."""
        return {
            self.found: None,
            self.hint: gr.update(visible=True),
            self.result: gr.update(visible=False),
        }

    @explained
    def look(
        self,
        path: str | None,
        model: str,
        beam_size: int,
        length_penalty: float | int,  # a browser writes 1.0 as 1
        sentence: str,
        *drawing: Any,
    ) -> Update:
        """Looks at a photo, or explains the given sentence about it."""
        if path is None or model not in self.models.names:  # no photo, or no second model
            return self.blank()
        photo = read(path)
        if sentence.strip():
            captions: tuple[Caption, ...] = (self.models.explain(photo, sentence, model),)
        else:
            captions = self.models.caption(photo, model, *search(beam_size, length_penalty))
        found = Found(model, replace(photo, picture=photo.preview()), captions)
        layers, heads = (0, 0) if captions[0].layers is None else captions[0].layers.shape[1:3]
        return {
            self.found: found,
            self.hint: gr.update(visible=False),
            self.result: gr.update(visible=True),
            self.heading: f"<h2>{escape(model)}</h2><p>{escape(captions[0].mechanism)}</p>",
            self.others: gr.update(
                choices=[(f"{c.text} · {c.log_prob:.1f}", n) for n, c in enumerate(captions)],
                value=0,
                visible=len(captions) > 1,
            ),
            self.parts: gr.update(visible=layers * heads > 1),
            self.layer: _choices(layers),
            self.head: _choices(heads),
            self.redraw: gr.update(visible=self.models.draws(model)),
        } | self.choose(found, 0, 0, ALL, ALL, *drawing)

    @explained
    def again(
        self, path: str | None, found: Found | None, chosen: int, word: int, *controls: Any
    ) -> Update:
        """Draws the places of hard attention anew for the chosen caption."""
        if found is None or path is None:
            return {}
        captions = list(found.captions)
        captions[chosen] = self.models.redraw(read(path), captions[chosen].text, found.model)
        found = replace(found, captions=tuple(captions))
        return {self.found: found} | self.restyle(found, chosen, word, *controls)

    @explained
    def choose(self, found: Found | None, chosen: int, _: int, *controls: Any) -> Update:
        """Shows another of the captions, from its first word."""
        if found is None:
            return {}
        words = found.captions[chosen].words
        named = gr.update(choices=[(word, n) for n, word in enumerate(words)], value=0)
        return {self.words: named} | self.restyle(found, chosen, 0, *controls)

    @explained
    def point(self, found: Found | None, chosen: int, word: int, *controls: Any) -> Update:
        """Shows where the model looked for a word.

        The arguments of all such handlers: what was found, which of the captions, which of its words,
        and the controls that ``style_of`` takes.
        """
        if found is None:
            return {}
        caption, style = found.captions[chosen], style_of(*controls)
        drawn = overlay.blend(caption, word, found.photo.picture, style, longest_side=SHOWN_SIDE)
        told = f"Where {found.model} looked for the word {caption.words[word]}"
        return {
            self.map: gr.update(value=_shown(drawn, found.photo), alt_text=told),
            self.facts: facts(caption, word, style),
        }

    @explained
    def restyle(self, found: Found | None, chosen: int, word: int, *controls: Any) -> Update:
        """Draws everything again: a control has been moved."""
        if found is None:
            return {}
        caption, style = found.captions[chosen], style_of(*controls)
        figure = overlay.figure(caption, found.photo.picture, style)
        told = f"Where {found.model} looked for each word of: {caption.text}"
        past = _past(caption, style.layer, style.head)
        return {
            self.figure: gr.update(value=_shown(figure, found.photo), alt_text=told),
            self.past: gr.update(
                value=None if past is None else _shown(past, found.photo),
                alt_text=f"How much each earlier word counts for each word of: {caption.text}",
            ),
            self.memory: gr.update(visible=past is not None),
        } | self.point(found, chosen, word, *controls)

    @explained
    def export(
        self, form: str, found: Found | None, chosen: int, _: int, *controls: Any
    ) -> str | None:
        """Writes a file to download."""
        if found is None:
            return None
        return write(found.captions[chosen], found.photo, form, style_of(*controls))


def facts(caption: Caption, word: int, style: Style) -> str:
    """What the numbers say of a word, as HTML: a flat map must not pass for a sharp one."""
    weights = overlay.maps(caption, style)[word : word + 1]
    entropy = float(overlay.entropies(weights)[0])
    probability = math.exp(caption.word_log_probs[word])
    return (
        f"<b>{escape(caption.words[word])}</b> · probability {probability:.0%} · looked at about "
        f"{math.exp(entropy):.1f} of {weights[0].size} cells · entropy {entropy:.2f} nats"
    )


def write(caption: Caption, photo: Photo, form: str, style: Style) -> str:
    """A file in a new folder of the upload folder, from where Gradio serves and later deletes it.

    Args:
        caption: what to show.
        photo: what it is about; gives the file its name.
        form: one of FORMATS.
        style: how it is drawn.
    """
    file = new_file(photo, form)
    match form:
        case "png":
            overlay.figure(caption, photo.picture, style).save(file)
        case "gif":
            file.write_bytes(overlay.animation(caption, photo.picture, style))
        case "html":
            file.write_text(overlay.page([caption], [photo.picture], style), "utf-8")
        case "json":
            text = json.dumps(overlay.record(caption, style), ensure_ascii=False)
            file.write_text(text + "\n", "utf-8")
        case _:
            raise AssertionError(form)
    return str(file)


def new_file(photo: Photo, suffix: str) -> Path:
    """Where to write a file that is named after a photo."""
    folder = Path(tempfile.mkdtemp(dir=get_upload_folder()))
    return folder / f"{Path(photo.name).stem}.{suffix}"


def _drawing(**named: Any) -> gr.Image:
    return gr.Image(
        show_label=False, type="filepath", interactive=False, buttons=["fullscreen"], **named
    )


def _shown(picture: Image.Image, photo: Photo) -> str:
    """A drawing for the screen: a JPEG, which is written in a tenth of the time of a PNG."""
    file = new_file(photo, "jpg")
    picture.save(file, quality=92, subsampling=0)
    return str(file)


def _past(caption: Caption, layer: int | None, head: int | None) -> Image.Image | None:
    """The matrix of earlier words, of the chosen layer and head if these have any."""
    if caption.past is None:
        return None
    _, layers, heads, _ = caption.past.shape
    return overlay.past(
        caption,
        layer if layer is not None and layer < layers else None,
        head if head is not None and head < heads else None,
    )


def _choices(count: int) -> Any:
    numbered = [(str(n + 1), n) for n in range(count)]
    return gr.update(choices=[("all, averaged", ALL), *numbered], value=ALL)
