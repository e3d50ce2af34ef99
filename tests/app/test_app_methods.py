"""The app with other explanations than attention: its models and its handlers, without a browser."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import gradio as gr
import pytest
from PIL import Image

from captioner.app.panel import ALL, Stage
from captioner.app.served_models import OWN, Models
from tests.predict.test_predictor import TRANSFORMER, noise
from tests.predict.test_predictor import predictor as untrained

STYLE = (ALL, ALL, 0.5, "own", "none", "glow")


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    file = tmp_path_factory.mktemp("photo") / "a.png"
    noise(1)[0].save(file)
    return str(file)


@pytest.fixture(scope="module")
def stage():
    """The stage of an app with a model of each kind, both untrained."""
    kinds = {"lstm": untrained("LSTMDecoder"), "tf": untrained("TransformerDecoder", **TRANSFORMER)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("captioner.app.served_models.load", lambda name, _: kinds[name])
        models = Models(["lstm", "tf"], "cpu")

    async def build():  # in an event loop, or gr.Blocks leaves one open
        with gr.Blocks():
            return Stage(models)

    with ThreadPoolExecutor(1) as thread:  # the tests in a browser have a loop in this one
        return thread.submit(asyncio.run, build()).result()


def ask(stage, photo, model, method, other="", given=""):
    """Ask as the page does; return the answers and the line above them."""
    several = ("beam", OWN, 1, 1, 1, 0)
    query = (photo, model, other, given, OWN, method, *several, *STYLE)
    update = stage.noticed(stage.ask)(*query)
    return update.get(stage.answers), update[stage.notice]


def test_the_app_captions_a_new_photo_that_the_method_cannot_explain(stage, tmp_path):
    """Attention is shown instead, and a line says so as long as it is."""
    new = tmp_path / "new.png"
    Image.new("RGB", (40, 40), "red").save(new)
    said = "lstm has no rollout; the maps show attention"
    for given in ("", "a red dog"):
        answers, notice = ask(stage, str(new), "lstm", "rollout", given=given)
        assert (answers[0].path, answers[0].caption.image) == (str(new), "new.png")
        assert answers[0].caption.method == "attention"
        assert said in notice
    assert said in stage.show(answers, *STYLE)[stage.notice]
    later, notice = ask(stage, answers, "lstm", "attention")
    assert (later[0].path, notice) == (str(new), "")


def test_the_app_shows_each_model_by_the_method_if_it_has_it(stage, photo):
    answers, notice = ask(stage, photo, "lstm", "rollout", other="tf")
    assert [answer.caption.method for answer in answers] == ["attention", "rollout"]
    assert notice.count("has no rollout") == notice.count("lstm has no rollout") == 1
    swapped, notice = ask(stage, answers, "tf", "rollout")
    assert ([answer.model for answer in swapped], notice) == (["tf"], "")
    (last,), notice = ask(stage, swapped, "lstm", "rollout")
    assert (last.model, last.caption.model) == ("lstm", "lstm")
    assert "lstm has no rollout" in notice


def test_the_chosen_caption_stays_chosen_when_the_method_changes(stage, photo):
    answers, _ = ask(stage, photo, "tf", "attention", other="lstm")
    for side, index in enumerate((2, 1)):
        answers = stage.choose(side, answers, index, *STYLE)[stage.answers]
    chosen = [answer.caption.text for answer in answers]
    for now in ("rollout", "attention"):
        answers, _ = ask(stage, answers, "tf", now, other="lstm")
        assert [answer.caption.text for answer in answers] == chosen
        assert [answer.chosen for answer in answers] == [2, 1]
        assert answers[0].caption.method == now
    others, _ = ask(stage, answers, "tf", "attention", given="a red dog")
    assert others[0].chosen == 0
