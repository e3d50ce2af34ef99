"""What the page shows: one or two models' captions of a photo, and where they looked."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from inspect import signature
from itertools import zip_longest
from math import exp
from typing import Any

import gradio as gr
import numpy as np

from captioner import overlay
from captioner.app.served_models import CONCURRENCY, Answer, Models, preview, read, several
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
LATEST: dict[str, Any] = {"trigger_mode": "always_last"}

SKELETON = '<div class="stage busy"><div class="bone"></div><div class="bone photo"></div></div>'
BUSY, IDLE = (
    f"() => document.querySelector('#stage')?.classList.{change}('busy')"
    for change in ("add", "remove")
)
# On a phone, the answer is above the controls that ask for it.
REVEAL = """() => requestAnimationFrame(() => (document.querySelector('#notice [role="alert"]')
  ?? document.querySelector('#stage h2'))?.scrollIntoView({ block: 'nearest' }))"""

Answers = tuple[Answer, ...]  # the state of an open page: each model's answer for its photo
Listen = Callable[..., Any]
Update = dict[Any, Any]


def select(index: int) -> int | None:
    """Return the index of a layer or head; None if all are chosen."""
    return None if index == ALL else index


def style_of(
    layer: int, head: int, opacity: float | int, scale: Any, smoothing: Any, look: Any = Style.look
) -> Style:
    """Return the controls of the page as a style."""
    return Style(opacity, scale, smoothing, select(layer), select(head), look)


class Panel:
    """The components below one model's photo, numbered by its side; built inside ``gr.Blocks``."""

    def __init__(self, number: int) -> None:
        with gr.Column(visible=False, min_width=300) as self.column:
            self.others = gr.Radio(
                [], label="Captions found, best first", elem_classes="others",
                info="The percentage is the probability of a word on average, by which captions are "
                "ranked. Confidence is the probability that the caption is right.",
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

    def update(self, answer: Answer) -> Update:
        """Show what belongs to an answer."""
        shown = answer.caption
        choices = [
            (f"{exp(caption.score):.1%} · {sentence(caption)}", index)
            for index, caption in enumerate(answer.captions)
        ]
        return {
            self.column: gr.update(visible=True),
            self.others: gr.update(choices=choices, value=answer.chosen, visible=len(choices) > 1),
            self.redraw: gr.update(visible=answer.can_sample and shown.method == "attention"),
            self.back: gr.update(visible=answer.sampled is not None),
            self.past: gr.update(visible=shown.past is not None, open=False),
        }


class Stage:
    """The photo with its captions, its panels and their events; built inside ``gr.Blocks``.

    Handlers take the controls of ``style_of`` last and return the components that they change.
    """

    def __init__(self, models: Models) -> None:
        self.models = models
        self.answers = gr.State((), time_to_live=3600)
        self.drawn = gr.State((), time_to_live=3600)  # the values of ``style_of`` that were drawn
        self.notice = gr.HTML(elem_id="notice", padding=False)
        self.photos = gr.HTML(SKELETON, elem_id="stage", padding=False)
        with gr.Row():
            self.panels = [Panel(1), Panel(2)]
        self.outputs = [self.answers, self.drawn, self.notice, self.photos]
        self.outputs += [output for panel in self.panels for output in panel.outputs]

    def connect(
        self, new_photo: Listen, path: Any, change: Listen, requests: list[Listen],
        query: list[Any], style: list[Any],
    ) -> None:  # fmt: skip
        """Connect the stage with the controls of the page.

        ``new_photo`` listens to the events after which there is a new photo at ``path``; ``change`` and
        ``requests``, to those after which the models answer again. After ``requests``, the page scrolls
        to the answer. ``query`` are the inputs of ``ask``, and ``style`` those of ``style_of``.
        """
        for listen in (new_photo, change, *requests):
            listen(None, js=BUSY, **PRIVATE)
            inputs = [path if listen is new_photo else self.answers, *query, *style]
            answered = listen(self.noticed(self.ask), inputs, self.outputs, **LATEST, **MODEL)
            answered.then(None, js=IDLE, **PRIVATE)
            if listen in requests:
                answered.then(None, js=REVEAL, **PRIVATE)
            state = [self.answers, self.drawn, *style]
            answered.then(self.catch_up, state, self.outputs, **PRIVATE)
        state = [self.answers, *style]
        restyled = [control.change for control in style]
        gr.on(restyled, self.noticed(self.show), state, self.outputs, **LATEST, **PRIVATE)
        for side, panel in enumerate(self.panels):
            choose = self.noticed(partial(self.choose, side))
            chosen = [self.answers, panel.others, *style]
            for listen in (panel.others.input, panel.back.click):
                listen(choose, chosen, self.outputs, **LATEST, **MODEL)
            sample = self.noticed(partial(self.sample, side))
            panel.redraw.click(sample, state, self.outputs, **MODEL)
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
                if not arguments[0]:  # not loaded yet, or dropped after an hour
                    raise UsageError("there is no photo; drop one, or choose an example")
                return handler(*arguments)
            except CaptionerError as error:
                return {self.notice: _alert(str(error))}

        return wrapped

    def ask(
        self, photo: Answers | str, model: str, other: str, given: str, beam_size: int, method: str,
        *controls: Any,
    ) -> Update:  # fmt: skip
        """Caption a new photo or the shown one, or explain the given sentence.

        If a model gives the same captions of the shown photo again, the chosen caption stays chosen.
        ``controls`` are the inputs of ``several`` and then those of ``style_of``.
        """
        path, former = (photo, ()) if isinstance(photo, str) else (photo[0].path, photo)
        count = len(signature(several).parameters)
        more = several(*controls[:count])
        decoded = read(path)
        shown = preview(decoded)
        names = [name for name in (model, other) if name in self.models.names]
        answers = []
        for name, before in zip_longest(names, former[: len(names)]):
            answer = self.models.answer(decoded, name, given, beam_size, more=more)
            answer = replace(answer.chosen_before(before), method=method, photo=shown, path=path)
            answers.append(self.models.explained(answer, decoded))
        return self.show(tuple(answers), *controls[count:])

    def choose(self, side: int, answers: Answers, chosen: int, *style: Any) -> Update:
        """Show a caption with its own maps."""
        answer = self.models.explained(replace(answers[side], chosen=chosen, sampled=None))
        return self.show((*answers[:side], answer, *answers[side + 1 :]), *style)

    def sample(self, side: int, answers: Answers, *style: Any) -> Update:
        """Sample the cells of hard attention again for the shown caption."""
        answer = answers[side]
        text = answer.caption.text
        answer = replace(answer, sampled=self.models.redraw(read(answer.path), text, answer.model))
        return self.show((*answers[:side], answer, *answers[side + 1 :]), *style)

    def show(self, answers: Answers, *style: Any) -> Update:
        """Show the answers of the models, and a line for each one without the chosen method."""
        kind = "wide" if len(answers) == 1 else "side-by-side"
        content = "".join(_fragment(answer, style_of(*style)) for answer in answers)
        update: Update = {
            self.answers: answers,
            self.drawn: style,
            self.notice: "".join(_alert(answer.note) for answer in answers if answer.note),
            self.photos: f'<div class="stage {kind}">{content}</div>',
            self.panels[1].column: gr.update(visible=False),
        }
        for panel, answer in zip(self.panels, answers, strict=False):
            update |= panel.update(answer)
        return update

    def catch_up(self, answers: Answers, drawn: tuple[Any, ...], *style: Any) -> Any:
        """Draw again if a control was changed while the models answered."""
        return self.show(answers, *style) if answers and drawn != style else gr.skip()

    def draw_past(self, side: int, answers: Answers, *style: Any) -> str:
        """Draw the attention of each word to the earlier words."""
        caption = answers[side].caption
        shown = _within(style_of(*style), caption.past)
        return write_image(overlay.word_attention(caption, shown.layer, shown.head), caption)

    def save(self, side: int, name: str, answers: Answers, *style: Any) -> str:
        """Write an export of the shown caption."""
        caption = answers[side].caption
        shown = _within(style_of(*style), caption.layers)
        return write_export(caption, answers[side].photo, name, shown)


def _alert(text: str) -> str:
    return f'<p role="alert">{escape(text)}</p>'


def _fragment(answer: Answer, style: Style) -> str:
    badge = "Your sentence" if answer.given else ""
    badge = "Sampled cells" if answer.sampled else badge
    shown = _within(style, answer.caption.layers)
    return fragment(answer.caption, answer.photo, shown, badge)


def _within(style: Style, weights: np.ndarray | None) -> Style:
    """Return the style without a layer or head that weights (T, layers, heads, …) do not have."""
    layers, heads = (0, 0) if weights is None else weights.shape[1:3]
    layer = style.layer if style.layer in range(layers) else None
    head = style.head if style.head in range(heads) else None
    return replace(style, layer=layer, head=head)
