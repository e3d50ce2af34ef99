"""What the page shows: one or two models' captions of a photo, and where they looked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from math import exp
from typing import Any

import gradio as gr
import numpy as np

from captioner import overlay
from captioner.app.example_photos import Example
from captioner.app.served_models import CONCURRENCY, Answer, Models, preview
from captioner.app.upload import write_export, write_image
from captioner.errors import CaptionerError, UsageError
from captioner.overlay import Style, export
from captioner.overlay.html import fragment
from captioner.overlay.style import sentence

ALL = -1  # the choice "all, averaged" among layers and heads

# The page's own events are not endpoints; programs use those of app/api.py.
PRIVATE: dict[str, Any] = {
    "api_visibility": "private", "show_progress": "hidden", "concurrency_limit": CONCURRENCY,
}  # fmt: skip
MODEL: dict[str, Any] = {**PRIVATE, "concurrency_id": "model"}
LATEST = {"trigger_mode": "always_last"}

SKELETON = '<div class="stage busy"><div class="bone"></div><div class="bone photo"></div></div>'

Listen = Callable[..., Any]
Update = dict[Any, Any]


@dataclass(frozen=True)
class Session:
    """An open page: the file of its photo, and what each model says about it."""

    path: str | None = None
    answers: tuple[Answer, ...] = ()


def select(index: int) -> int | None:
    """Return the index of a layer or head; None if all are chosen."""
    return None if index == ALL else index


def style_of(
    layer: int, head: int, opacity: float | int, scale: Any, smoothing: Any, *others: Any
) -> Style:
    """Return the controls of the page as a style; ``others`` are the look and the contours."""
    return Style(opacity, scale, smoothing, select(layer), select(head), *others)


class Panel:
    """The components below one model's photo, numbered by its side; built inside ``gr.Blocks``."""

    def __init__(self, number: int) -> None:
        with gr.Column(visible=False, min_width=300) as self.column:
            self.others = gr.Radio(
                [], label="Captions found, best first", elem_classes="others",
                info="The search ranks them by their probability, normalised by length.",
                elem_id=f"others-{number}", interactive=True,
            )  # fmt: skip
            with gr.Row():
                button = partial(gr.Button, size="sm")
                self.redraw = button("Sample the cells again", elem_id=f"redraw-{number}")
                self.back = button("Back to the caption's own map", elem_id=f"back-{number}")
            with gr.Accordion("Attention to earlier words", open=False) as self.past:
                self.matrix = gr.Image(show_label=False, type="filepath", buttons=["fullscreen"])
            with gr.Row(elem_classes="downloads"):
                gr.HTML("Save", padding=False)
                self.downloads = {
                    name: button(name.upper(), min_width=50, elem_id=f"{name}-{number}")
                    for name in export.names()
                }
        self.file = gr.DownloadButton(visible="hidden", elem_id=f"file-{number}")
        self.outputs = [self.column, self.others, self.redraw, self.back, self.past]

    def update(self, answer: Answer, samples: bool) -> Update:
        """Show what belongs to an answer."""
        choices = [
            (f"{exp(caption.score):.1%} · {sentence(caption)}", index)
            for index, caption in enumerate(answer.captions)
        ]
        return {
            self.column: gr.update(visible=True),
            self.others: gr.update(choices=choices, value=answer.chosen, visible=len(choices) > 1),
            self.redraw: gr.update(visible=samples),
            self.back: gr.update(visible=answer.sampled is not None),
            self.past: gr.update(visible=answer.caption.past is not None, open=False),
        }


class Stage:
    """The photo with its captions, its panels and their events; built inside ``gr.Blocks``.

    Handlers take the session first and the controls of ``style_of`` last, and return the components
    that they change.
    """

    def __init__(self, models: Models, examples: Sequence[Example]) -> None:
        self.models = models
        self.credits = {e.path.name: f"{e.title}: {e.credit}" for e in examples if e.credit}
        self.session = gr.State(Session(), time_to_live=3600)
        self.notice = gr.HTML(elem_id="notice", padding=False)
        self.photos = gr.HTML(SKELETON, elem_id="stage", padding=False)
        with gr.Row():
            self.panels = [Panel(1), Panel(2)]
        self.outputs = [self.session, self.notice, self.photos]
        self.outputs += [output for panel in self.panels for output in panel.outputs]

    def connect(
        self,
        new_photo: Listen,
        path: Any,
        changes: list[Listen],
        query: list[Any],
        style: list[Any],
    ) -> None:
        """Connect the stage with the controls of the page: of ``ask`` and of ``style_of``.

        ``new_photo`` listens to the events after which there is a new photo at ``path``; ``changes``
        listen to those after which the models answer again.
        """
        busy = "() => document.querySelector('#stage')?.classList.add('busy')"
        idle = "() => document.querySelector('#stage')?.classList.remove('busy')"
        asks: list[tuple[Listen, Listen, Any]] = [(new_photo, self.caption_new, path)]
        asks += [(listen, self.ask, self.session) for listen in changes]
        for listen, handler, first in asks:
            listen(None, js=busy, **PRIVATE)
            inputs = [first, *query, *style]
            asked = listen(self.noticed(handler), inputs, self.outputs, **LATEST, **MODEL)
            asked.then(None, js=idle, **PRIVATE)
        state = [self.session, *style]
        restyled = [control.change for control in style]
        gr.on(restyled, self.noticed(self.show), state, self.outputs, **LATEST, **PRIVATE)
        for side, panel in enumerate(self.panels):
            chosen = [self.session, panel.others, *style]
            for event, change, inputs, options in (
                (panel.others.input, self.choose, chosen, LATEST | PRIVATE),
                (panel.redraw.click, self.sample, state, MODEL),
                (panel.back.click, self.choose_own, state, PRIVATE),
            ):
                event(self.noticed(partial(change, side)), inputs, self.outputs, **options)
            panel.past.expand(partial(self.draw_past, side), state, panel.matrix, **PRIVATE)
            for name, button in panel.downloads.items():
                # A browser saves the target of a link: write the file first, then click the link.
                saved = button.click(partial(self.save, side, name), state, panel.file, **PRIVATE)
                click = f"() => document.querySelector('#{panel.file.elem_id}').click()"
                saved.success(None, js=click)

    def noticed(self, handler: Callable[..., Update]) -> Callable[..., Update]:
        """Wrap a handler so that an error is shown above the photo, which stays."""

        def wrapped(*arguments: Any) -> Update:
            try:
                if arguments[0] == Session():  # not loaded yet, or dropped after an hour
                    raise UsageError("there is no photo; drop one, or choose an example")
                return {self.notice: ""} | handler(*arguments)
            except CaptionerError as error:
                return {self.notice: f'<p role="alert">{escape(str(error))}</p>'}

        return wrapped

    def caption_new(self, path: str, *controls: Any) -> Update:
        """Caption a new photo."""
        return self.ask(Session(path), *controls)

    def ask(
        self, session: Session, model: str, other: str, given: str, beam_size: int,
        length_penalty: float, *style: Any,
    ) -> Update:  # fmt: skip
        """Caption the photo, or explain the given sentence."""
        answers = [
            self.models.answer(session.path, name, given, beam_size, length_penalty)
            for name in (model, other)
            if name in self.models.names
        ]
        kept = tuple(replace(answer, photo=preview(answer.photo)) for answer in answers)
        return self.show(replace(session, answers=kept), *style)

    def choose(self, side: int, session: Session, chosen: int, *style: Any) -> Update:
        """Show another caption."""
        return self._change(side, session, style, chosen=chosen, sampled=None)

    def choose_own(self, side: int, session: Session, *style: Any) -> Update:
        """Show the attention with which the caption was written."""
        return self._change(side, session, style, sampled=None)

    def sample(self, side: int, session: Session, *style: Any) -> Update:
        """Sample the cells of hard attention again for the shown caption."""
        answer = session.answers[side]
        sampled = self.models.redraw(session.path, answer.caption.text, answer.model)
        return self._change(side, session, style, sampled=sampled)

    def _change(self, side: int, session: Session, style: Sequence[Any], **changes: Any) -> Update:
        answers = list(session.answers)
        answers[side] = replace(answers[side], **changes)
        return self.show(replace(session, answers=tuple(answers)), *style)

    def show(self, session: Session, *style: Any) -> Update:
        """Show a session."""
        content = "".join(self._fragment(answer, style_of(*style)) for answer in session.answers)
        kind = "wide" if len(session.answers) == 1 else "side-by-side"
        update: Update = {
            self.session: session,
            self.photos: f'<div class="stage {kind}">{content}</div>',
            self.panels[1].column: gr.update(visible=False),
        }
        for panel, answer in zip(self.panels, session.answers, strict=False):
            update |= panel.update(answer, self.models.samples(answer.model))
        return update

    def _fragment(self, answer: Answer, style: Style) -> str:
        badge = "Your sentence" if answer.given else ""
        if answer.sampled is not None:
            badge = "Sampled cells"
        credit = self.credits.get(answer.caption.image or "", "")
        shown = _within(style, answer.caption.layers)
        return fragment(answer.caption, answer.photo, shown, badge, credit)

    def draw_past(self, side: int, session: Session, *style: Any) -> Any:
        """Draw the attention of each word to the earlier words."""
        answer = session.answers[side]
        shown = _within(style_of(*style), answer.caption.past)
        matrix = overlay.word_attention(answer.caption, shown.layer, shown.head)
        return write_image(matrix, answer.caption)

    def save(self, side: int, name: str, session: Session, *style: Any) -> str:
        """Write an export of the shown caption."""
        answer = session.answers[side]
        shown = _within(style_of(*style), answer.caption.layers)
        return write_export(answer.caption, answer.photo, name, shown)


def _within(style: Style, weights: np.ndarray | None) -> Style:
    """Return the style without a layer or head that weights (T, layers, heads, …) do not have."""
    _, layers, heads = (0, 0, 0) if weights is None else weights.shape[:3]
    layer = style.layer if style.layer is not None and style.layer < layers else None
    head = style.head if style.head is not None and style.head < heads else None
    return replace(style, layer=layer, head=head)
