"""The app: a page on which a captioner looks at a photo and shows where it looked for each word.

    photo ─┬─ Panel of a model ─▶ words, map, every word, alternatives, downloads
           └─ Panel of another ─▶ the same, side by side

`ui_models` is what it asks of the models, `ui_panel` one model's side, `ui_api` the same for programs.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr

from captioner.data.shapes import scene
from captioner.data.things import SHAPES
from captioner.errors import UsageError
from captioner.overlay import Style
from captioner.ui_api import add_endpoints
from captioner.ui_models import CONCURRENCY, MAX_BEAM, Models
from captioner.ui_panel import OWN, Panel
from captioner.ui_photo import MAX_FILE, PhotoInput

TITLE = """<h1>captioner</h1>
<p>It looks at a photo, writes a sentence, and shows where it looked for each word.</p>"""
NONE = "no other"
AS_SCORED = ("the model's own", OWN)
PENALTIES = (0.0, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0, 3.0)
SCALES = [("shared by all words", "shared"), ("each word its own", "own")]
SMOOTHINGS = [("smooth", "bicubic"), ("as in the paper", "gaussian"), ("cells", "none")]

WAITING = 128
"""Requests that may wait; further ones are refused, not collected."""

CLEAN_EVERY, KEEP = 600, 3600
"""How often uploads and drawings are deleted, and from what age, in seconds."""

SESSIONS = 100
"""Open pages that are remembered; the oldest is forgotten first."""

HELD_OUT = 3  # a seed that no training uses

# Fonts of the visitor's own system: the page asks no other host for anything.
THEME = gr.themes.Base(
    primary_hue=gr.themes.colors.indigo,
    secondary_hue=gr.themes.colors.indigo,
    neutral_hue=gr.themes.colors.slate,
    font=["system-ui", "sans-serif"],
    font_mono=["ui-monospace", "monospace"],
)

# Grey text and white on a button must be readable for everybody.
THEME.set(
    body_text_color_subdued="*neutral_600",
    button_primary_background_fill="*primary_600",
    button_primary_background_fill_hover="*primary_700",
)

CSS = (Path(__file__).parent / "ui.css").read_text("utf-8")
JS = (Path(__file__).parent / "ui.js").read_text("utf-8")

# The page's own events are no endpoints: programs have those of `ui_api`.
PRIVATE: dict[str, Any] = {"api_visibility": "private", "show_progress": "minimal"}


def build(models: Models, examples: Sequence[str | Path] = ()) -> gr.Blocks:
    """The page, ready for ``launch``.

    Args:
        models: what can be asked; shared by all visitors.
        examples: pictures to try.
    """
    page = gr.Blocks(title="captioner", analytics_enabled=False, delete_cache=(CLEAN_EVERY, KEEP))
    with page:
        gr.HTML(TITLE, padding=False, elem_classes="title")
        with gr.Row(elem_classes="page"):
            with gr.Column(elem_classes="photo"):
                photo = PhotoInput(
                    label="Photo",
                    sources=["upload", "clipboard", "webcam"],
                    type="filepath",
                    height=280,
                    elem_id="photo",
                    buttons=[],
                )
                if examples:
                    gr.Examples(
                        [[str(example)] for example in examples],
                        photo,
                        label="Examples",
                        api_visibility="private",
                    )
            with gr.Row(elem_classes="panels"):
                with gr.Column(min_width=300):
                    first = Panel(models, 1)
                with gr.Column(min_width=300, visible=False) as side:
                    second = Panel(models, 2)
            with gr.Column(elem_classes="settings"):
                name = gr.Dropdown(models.names, value=models.names[0], label="Model")
                other = gr.Dropdown([NONE, *models.names], value=NONE, label="Compare with")
                sentence = gr.Textbox(
                    label="Explain this sentence instead",
                    placeholder="a brown dog on grass",
                    max_lines=3,
                    max_length=400,
                    elem_id="sentence",
                )
                with gr.Row():
                    explain = gr.Button("Explain", size="sm", min_width=90, variant="primary")
                    clear = gr.Button("Its own words", size="sm", min_width=90)
                with gr.Accordion("How it searches", open=False):
                    search = [
                        gr.Dropdown([AS_SCORED, *range(1, MAX_BEAM + 1)], value=OWN, label="Beam size",
                                    info="Captions followed at once; 1 is greedy."),
                        gr.Dropdown([AS_SCORED, *PENALTIES], value=OWN, label="Length penalty",
                                    info="0 prefers short captions."),
                    ]  # fmt: skip
                with gr.Accordion("How it is drawn", open=False):
                    style = [
                        gr.Slider(0, 1, Style.opacity, step=0.05, label="Opacity"),
                        gr.Radio(SCALES, value="shared", label="Scale"),
                        gr.Radio(SMOOTHINGS, value="bicubic", label="Smoothing",
                                 info="For the eye only."),
                    ]  # fmt: skip
        other.change(
            lambda chosen: gr.update(visible=chosen != NONE), other, side, queue=False, **PRIVATE
        )
        cleared = clear.click(lambda: "", None, sentence, queue=False, **PRIVATE)
        changes = [photo.change, sentence.submit, explain.click, *(part.change for part in search)]
        for panel, model in ((first, name), (second, other)):
            asked = [photo, model, *search, sentence]
            _wire(panel, asked, [*changes, model.change], cleared, style)
        add_endpoints(models)
    return page


def _wire(
    panel: Panel, asked: list[Any], changes: list[Any], cleared: Any, style: list[Any]
) -> None:
    """Connects a panel with the page's controls.

    Args:
        panel: one model's side.
        asked: photo, model and how to search.
        changes: the events after which the model looks again.
        cleared: the event that took the given sentence away.
        style: how it is drawn.
    """
    photo, *_ = asked
    drawn = [panel.found, panel.others, panel.words, panel.layer, panel.head, *style]
    works: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": CONCURRENCY} | PRIVATE
    draws: dict[str, Any] = {
        "concurrency_limit": CONCURRENCY,
        "trigger_mode": "always_last",
    } | PRIVATE
    for look in (
        gr.on(
            changes,
            panel.look,
            [*asked, *style],
            panel.outputs,
            trigger_mode="always_last",
            **works,
        ),
        cleared.then(panel.look, [*asked, *style], panel.outputs, **works),
    ):
        # What the page still shows is of another photo.
        look.failure(panel.blank, None, panel.outputs, queue=False, **PRIVATE)
    panel.redraw.click(panel.again, [photo, *drawn], panel.outputs, **works)
    panel.words.input(panel.point, drawn, [panel.map, panel.facts], **draws)
    panel.others.input(panel.choose, drawn, panel.outputs, **draws)
    moved = [part.change for part in style] + [panel.layer.input, panel.head.input]
    gr.on(moved, panel.restyle, drawn, panel.outputs, **draws)
    for form, button in panel.buttons.items():
        # A browser saves what a link leads to: the file is made first, and then the link clicked.
        made = button.click(partial(panel.export, form), drawn, panel.file, **draws)
        made.success(None, js=f"() => document.querySelector('#{panel.file.elem_id}').click()")


def example_scenes(models: Models, folder: Path, count: int = 6) -> list[Path]:
    """Writes generated scenes that no training has seen; none if the first model lacks their words.

    Who has learned from photos alone says of a triangle that it is a man in a red shirt.
    """
    known = models.get().vocabulary.words
    if not set(SHAPES) <= set(known):
        return []
    files = [folder / f"scene-{index}.png" for index in range(1, count + 1)]
    for index, file in enumerate(files, start=1):
        scene(HELD_OUT, index).image.save(file)
    return files


@contextmanager
def serving(
    models: Models,
    host: str = "127.0.0.1",
    port: int | None = None,
    examples: Sequence[str | Path] = (),
) -> Iterator[str]:
    """The app while it runs: its address. Uploads and drawings are gone afterwards.

    Args:
        models: what can be asked.
        host: the address to listen at; ``0.0.0.0`` for everybody in the network.
        port: the port to listen at; None for a free one from 7860.
        examples: pictures to try; if none are given, generated scenes for a model that knows them.

    Raises:
        UsageError: the port is taken, or the host is not this machine's.
    """
    with tempfile.TemporaryDirectory(prefix="captioner-app-") as folder, _uploads_in(folder):
        page = build(models, examples or example_scenes(models, Path(folder)))
        page.queue(max_size=WAITING, default_concurrency_limit=CONCURRENCY)
        try:
            _, url, _ = page.launch(
                server_name=host,
                server_port=port,
                max_file_size=MAX_FILE,
                state_session_capacity=SESSIONS,
                theme=THEME,
                css=CSS,
                js=JS,
                footer_links=["api"],
                share=False,
                ssr_mode=False,
                run_history=False,
                enable_monitoring=False,
                prevent_thread_lock=True,
                quiet=True,
            )
        except OSError as error:
            raise UsageError(f"cannot listen at {host}:{port}: {error}; try --port 7861") from error
        try:
            yield url
        finally:
            page.close(verbose=False)


@contextmanager
def _uploads_in(folder: str) -> Iterator[None]:
    """While this lasts, Gradio keeps uploads and drawings in the folder, and reads no other."""
    name = "GRADIO_TEMP_DIR"
    before = os.environ.get(name)
    os.environ[name] = folder
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def run(
    models: Models, host: str = "127.0.0.1", port: int = 7860, examples: Sequence[Path] = ()
) -> None:
    """Serves the app until it is interrupted or told to end, and clears up behind it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # as containers are told
    with serving(models, host, port, examples) as url:
        print(f"captioner is at {url} (Ctrl+C ends it)", flush=True)
        threading.Event().wait()
