"""The models that the app offers, and their answers. This module does not use Gradio."""

import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from captioner.errors import ImageError, ModelError, UsageError, unknown
from captioner.photos import images
from captioner.photos.images import Photo
from captioner.predict.base_predictor import BasePredictor, sentence_words
from captioner.predict.caption import Caption
from captioner.predict.load import load
from captioner.resources import bundled_models
from captioner.store.model_folder import BEST, MODEL

Real = float | int  # JSON writes 1.0 as 1
CONCURRENCY = max(2, min(4, os.cpu_count() or 1))  # requests computed at the same time
MAX_PIXELS = 50_000_000  # 150 MB in 8-bit RGB
MAX_BEAM = 20  # for requests; a model's own beam may be larger
MAX_PENALTY = 3
MAX_COUNT = 10  # captions of a photo
# Ways of writing several captions, with the names that the page shows.
WAYS = {"beam": "beam search", "diverse": "diverse beam search", "sampled": "sampling"}
DEFAULT_COUNT = 5  # number of captions of diverse beam search and of sampling
TEMPERATURE, TOP_P = 0.7, 0.95  # of sampling, unless others are chosen
MAX_WORDS = 40
OWN = -1  # the beam size or length penalty that the model was scored with
PREVIEW_SIDE = 1024  # longest side in pixels of the photo that an open page keeps


@dataclass(frozen=True, eq=False)
class Answer:
    """A photo and its captions by one model, and which of them the page shows."""

    model: str
    photo: images.Source
    captions: tuple[Caption, ...]  # the model's, best first, or one written by the user
    given: bool  # whether the user wrote it
    can_sample: bool  # whether the model has hard attention
    chosen: int = 0  # the index of the shown caption
    sampled: Caption | None = None  # the shown caption with newly sampled cells
    method: str = "attention"  # how the shown caption is to be explained
    note: str = ""  # why the model cannot use the method; its maps then show attention
    path: str = ""  # of the upload, to decode it again

    @property
    def caption(self) -> Caption:
        """The shown caption."""
        return self.sampled or self.captions[self.chosen]

    def chosen_before(self, former: "Answer | None") -> "Answer":
        """Keep the choice of a former answer if it has the same captions."""
        texts = [caption.text for caption in self.captions]
        if former is None or texts != [caption.text for caption in former.captions]:
            return self
        return replace(self, chosen=former.chosen)


def read(path: str | Path | None) -> Photo:
    """Decode an upload; the photo and errors about it have its name, without the server's folder."""
    if path is None:
        raise UsageError("no photo given; upload one")
    name = Path(path).name
    try:
        return Photo(name, images.load(path, max_pixels=MAX_PIXELS))
    except ImageError as error:
        text = str(error).replace(images.name_of(path), images.name_of(name), 1)
        raise ImageError(text) from error


def preview(photo: Photo) -> bytes:
    """Return a photo as a JPEG of the size that a page shows, which takes little memory."""
    small, stream = photo.image.copy(), BytesIO()
    small.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE), Image.Resampling.LANCZOS)
    small.save(stream, "JPEG", quality=90)
    return stream.getvalue()


def several(
    way: str, count: int, diversity: Real, temperature: Real, top_p: Real, seed: int
) -> dict[str, Any]:
    """Return the options of ``BasePredictor.caption``; those that do not apply are None.

    Args:
        way: one of ``WAYS``.
        count: number of captions; -1 means those of the model's own beam, or ``DEFAULT_COUNT``.
        diversity: the penalty of diverse beam search, which has one group per caption.
        temperature, top_p, seed: options of sampling.
    """
    number = {"num_captions": DEFAULT_COUNT if count == OWN else count}
    if way == "diverse":
        groups = {"diverse_groups": number["num_captions"], "diversity": diversity}
        return number | groups | {"beam_size": None}  # groups have their own size
    if way == "sampled":
        sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
        return number | sampling | {"beam_size": None, "length_penalty": None}
    return {} if count == OWN else number


class Models:
    """Predictors by name: the given models are loaded at once, the bundled ones when first used.

    All methods can be called from several threads, and raise ``UsageError`` for an unknown model or a
    number or sentence out of range.
    """

    def __init__(self, given: Sequence[str] = (), device: str = "auto") -> None:
        self._device = device
        self._lock = threading.Lock()
        self._loaded: dict[str, tuple[BasePredictor, BasePredictor | None]] = {}  # and its sampler
        self._sources: dict[str, str] = {}
        for model in given:
            own = name = _name(model)
            number = 2
            while name in self._sources:
                name, number = f"{own} ({number})", number + 1
            self._sources[name] = model
        for name in self._sources:
            self._load(name)
        for name in bundled_models():
            self._sources.setdefault(name, name)
        self.names = list(self._sources)  # the default first

    def get(self, name: str) -> BasePredictor:
        """Return the model with this name."""
        return self._load(name)[0]

    def _load(self, name: str) -> tuple[BasePredictor, BasePredictor | None]:
        if name not in self._sources:
            raise UsageError(unknown("model", name, self.names))
        with self._lock:
            if name not in self._loaded:
                predictor = load(self._sources[name], self._device)
                predictor.name = name  # exported files must not show a path of the server
                self._loaded[name] = predictor, predictor.sampler()
            return self._loaded[name]

    def answer(
        self, photo: Photo, model: str, sentence: str = "", beam_size: int = OWN,
        length_penalty: Real = OWN, details: bool = True, more: Mapping[str, Any] | None = None,
    ) -> Answer:  # fmt: skip
        """Caption a photo, or explain a sentence about it if there is one.

        Beam size or length penalty -1 means the model's own. With ``details``, captions have weights
        per layer and head, and attention to earlier words. ``more`` is what ``several`` returns.
        """
        predictor, sampler = self._load(model)
        can_sample = sampler is not None
        if sentence.strip():
            return Answer(model, photo, (_explain(predictor, photo, sentence),), True, can_sample)
        search = {"beam_size": beam_size, "length_penalty": length_penalty}
        options: dict[str, Any] = {k: value for k, value in search.items() if value != OWN}
        options |= more or {}
        known = predictor.has_confidence(predictor.search_options(options))
        detailed = details and not predictor.draws_locations
        best = predictor.caption(photo, details=detailed, confidence=known, **options)
        return Answer(model, photo, (best, *best.alternatives), False, can_sample)

    def explained(self, answer: Answer, photo: Photo | None = None) -> Answer:
        """Explain the shown caption by the method of the answer, unless it already is.

        If the model or the installation lacks what the method needs, the answer says so in ``note``,
        and the caption keeps its attention. ``photo`` is the upload, if it was already decoded.
        """
        captions, shown = list(answer.captions), answer.chosen
        if captions[shown].method == answer.method:
            return replace(answer, note="")
        try:
            photo = photo or read(answer.path)
            captions[shown] = self.get(answer.model).explain(photo, captions[shown], answer.method)
        except (UsageError, ModelError) as error:
            note = f"{answer.model} has no {answer.method}; the maps show attention ({error})"
            return replace(answer, note=note)
        return replace(answer, captions=tuple(captions), note="")

    def redraw(self, photo: Photo, sentence: str, model: str) -> Caption:
        """Explain a sentence; hard attention samples a new cell for each word in every call."""
        _, sampler = self._load(model)
        if sampler is None:
            raise UsageError(f"{model} has no hard attention to sample; choose another model")
        return _explain(sampler, photo, sentence)


def _explain(predictor: BasePredictor, photo: Photo, sentence: str) -> Caption:
    sentence_words(sentence, MAX_WORDS)  # the time grows with the square of their number
    return predictor.explain(photo, sentence)


def _name(model: str) -> str:
    """Return the name of the run or folder of a model."""
    path = Path(model)
    if path.parts[-2:] == BEST.parts:
        path = path.parents[1]
    elif path.name == MODEL:
        path = path.absolute().parent
    return path.name or model
