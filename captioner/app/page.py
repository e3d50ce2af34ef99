"""The page of the app."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
import jinja2

from captioner.app.api import add_endpoints
from captioner.app.example_photos import Example
from captioner.app.panel import ALL, PRIVATE, Listen, Stage
from captioner.app.served_models import MAX_BEAM, MAX_COUNT, OWN, TEMPERATURE, TOP_P, WAYS, Models
from captioner.app.upload import Page, PhotoInput
from captioner.limits import METHODS, SEED
from captioner.overlay import Style
from captioner.overlay.html import FOLDER as OVERLAY
from captioner.search.options import Decoding

TITLE = """<h1>captioner</h1>
<p>Describes a photo and shows where the model looked for each word. Point at a word.</p>"""
NONE = "no other"
LOOKS = [("glow", "glow"), ("as in the paper", "paper")]
SCALES = [("shared by all words", "shared"), ("one for each word", "own")]
SMOOTHINGS = [("smooth", "bicubic"), ("gaussian", "gaussian"), ("cells", "none")]
DELETE_CACHE = (600, 3600)  # every 600 s, delete uploads and drawings that are older than 3600 s
FOLDER = Path(__file__).parent

CHOOSE = """element.addEventListener("click", ({ target }) => {
  const button = target.closest("button[data-index]");
  if (button) trigger("select", { index: Number(button.dataset.index) });
});"""

# System fonts, so that the page sends no request to another host.
THEME = gr.themes.Base(
    primary_hue=gr.themes.colors.amber,
    neutral_hue=gr.themes.colors.zinc,
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
).set(checkbox_border_color="*neutral_500", checkbox_border_color_dark="*neutral_400")
Choice = partial(gr.Dropdown, filterable=False)  # a text that is no choice would stay in the field


def _text(*files: Path) -> str:
    return "\n".join(file.read_text("utf-8") for file in files)


# Arguments of ``launch`` for this page.
LOOK: dict[str, Any] = {
    "theme": THEME,
    "css": _text(OVERLAY / "map.css", FOLDER / "page.css"),
    "js": "() => {\n" + _text(OVERLAY / "map.js", FOLDER / "page.js") + "}",
}


def build(models: Models, examples: Sequence[Example]) -> gr.Blocks:
    """Return the page, ready for ``launch``, which opens with the first of these examples."""
    with Page(title="captioner", analytics_enabled=False, delete_cache=DELETE_CACHE) as page:
        gr.HTML(TITLE, padding=False, elem_classes="title")
        path = gr.State(str(examples[0].path))
        with gr.Row(elem_classes="page"):
            with gr.Column(elem_classes="photo"):
                photo = PhotoInput(
                    label="Your photo", sources=["upload", "clipboard", "webcam"], type="filepath",
                    height=170, elem_id="photo", buttons=[],
                )  # fmt: skip
                template = jinja2.Template(_text(FOLDER / "examples.html"), autoescape=True)
                photos = template.render(examples=examples)
                strip = gr.HTML(photos, js_on_load=CHOOSE, padding=False, elem_id="examples")
            with gr.Column(elem_classes="result"):
                stage = Stage(models)
            with gr.Column(elem_classes="settings"):
                query, style, change, requests = _settings(models)

        # The photo moves to `path` at once, so that the next one can be dropped, and so that no
        # browser has to show a TIFF or a file that is no image.
        def move(new: str | None) -> Any:
            return gr.skip() if new is None else (None, new)

        def choose(event: gr.EventData) -> str:
            return str(examples[event.index].path)

        photo.change(move, photo, [photo, path], **PRIVATE)
        strip.select(choose, None, path, **PRIVATE)
        new_photo = partial(gr.on, [path.change, page.load])
        stage.connect(new_photo, path, change, requests, query, style)
        add_endpoints(models)
    return page


def _settings(models: Models) -> tuple[list[Any], list[Any], Listen, list[Listen]]:
    """Add the controls; return ``query``, ``style``, ``change``, ``requests`` for ``Stage.connect``."""
    name = Choice(models.names, value=models.names[0], label="Model")
    other = Choice([NONE, *models.names], value=NONE, label="Compare with")
    sentence = gr.Textbox(
        label="Your sentence", placeholder="a brown dog on grass", max_lines=3,
        info="See where the model looks while it reads it.", elem_id="sentence",
    )  # fmt: skip
    with gr.Row():
        explain = gr.Button("Explain", size="sm", min_width=90, variant="primary")
        clear = gr.Button("Model's caption", size="sm", min_width=90)
    method = Choice(
        list(METHODS), value="attention", label="Explain by", elem_id="method",
        info="All but attention and rollout take seconds.",
    )  # fmt: skip
    with gr.Accordion("Search", open=False):
        sizes = [("model default", OWN), *range(1, MAX_BEAM + 1)]
        beam_size = Choice(sizes, value=OWN, label="Beam size", info="1 is greedy search.")
        ways = [(text, way) for way, text in WAYS.items()]
        way = gr.Radio(ways, value="beam", label="Several captions by", elem_id="way")
        counts = [("model default", OWN), *range(1, MAX_COUNT + 1)]
        count = Choice(counts, value=OWN, label="Number of captions", elem_id="count")
        with gr.Column(visible=False) as diverse:
            diversity = gr.Slider(
                0, 3, Decoding.diversity, step=0.1, label="Diversity",
                info="How much captions avoid each other's words.",
            )  # fmt: skip
        with gr.Column(visible=False) as sampled:
            info = "Higher is more varied."
            temperature = gr.Slider(0.1, 2, TEMPERATURE, step=0.1, label="Temperature", info=info)
            info = "Lower leaves out improbable words."
            top_p = gr.Slider(0.05, 1, TOP_P, step=0.05, label="Top-p", info=info)
            seed = gr.Number(
                0, precision=0, minimum=SEED.low, maximum=SEED.high, label="Seed", elem_id="seed",
                info="The same seed gives the same captions.",
            )  # fmt: skip
        way.change(
            lambda way: [gr.update(visible=way == name) for name in ("diverse", "sampled")],
            way, [diverse, sampled], queue=False, **PRIVATE,
        )  # fmt: skip
    with gr.Accordion("Drawing", open=False):
        look = gr.Radio(LOOKS, value=Style.look, label="Style")
        opacity = gr.Slider(0, 1, Style.opacity, step=0.05, label="Opacity")
        scale = gr.Radio(SCALES, value=Style.scale, label="Colour scale")
        smoothing = gr.Radio(SMOOTHINGS, value=Style.smoothing, label="Smoothing")
        layer, head = (
            Choice(
                [("all, averaged", ALL), *((str(i + 1), i) for i in range(count))], value=ALL,
                label=label, info="For the attention of decoders with several.",
            )
            for label, count in (("Layer", 6), ("Head", 8))
        )  # fmt: skip
    cleared = clear.click(lambda: "", None, sentence, queue=False, **PRIVATE)
    search: list[Any] = [beam_size, method, way, count, diversity, temperature, top_p, seed]
    query, style = [name, other, sentence, *search], [layer, head, opacity, scale, smoothing, look]
    change = partial(gr.on, [control.change for control in (name, other, *search)])
    return query, style, change, [partial(gr.on, [sentence.submit, explain.click]), cleared.then]
