"""The models that the app offers, each loaded once, and what it asks of them; no page in here.

photo file ── read ─▶ picture ─┬─ caption ─▶ the beam's captions
                               ├─ explain ─▶ the given sentence
                               └─ redraw ──▶ the same words, hard attention drawn anew
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from PIL import Image

from captioner import images
from captioner.checkpoint import BEST, MODEL
from captioner.errors import ImageError, UsageError, unknown
from captioner.predictor import Caption, Predictor, load
from captioner.shipped import models as bundled_models

MAX_PIXELS = 50_000_000
"""The largest photo taken: 8 bits of red, green and blue make 150 MB of it."""

CONCURRENCY = max(2, min(4, os.cpu_count() or 1))
"""How many requests are computed at a time; torch itself uses several cores for each."""

MAX_BEAM = 20
"""The widest beam that may be asked for; a model's own is taken as it is."""

MAX_WORDS = 40
PREVIEW = 1024
"""The longer side in pixels of what is kept of a photo while its page is open."""


@dataclass(frozen=True, eq=False)
class Photo:
    """An uploaded photo.

    Attributes:
        name: of the file, without folders.
        picture: upright RGB, at its own size.
    """

    name: str
    picture: Image.Image

    def preview(self) -> Image.Image:
        """A copy to draw on, no larger than a page shows."""
        small = self.picture.copy()
        small.thumbnail((PREVIEW, PREVIEW), Image.Resampling.LANCZOS)
        return small


def read(path: str | Path) -> Photo:
    """Reads an uploaded photo.

    Raises:
        ImageError: it cannot be read; the message names the file, never its folder.
    """
    try:
        return Photo(Path(path).name, images.load(path, max_pixels=MAX_PIXELS))
    except ImageError as error:
        # Where the server keeps uploads is no concern of its visitors, nor are its limits theirs.
        where, found, text = str(error).partition(": found ")
        text = text.replace(" or raise max_pixels", "")
        raise ImageError(f"{Path(where).name}{found}{text}") from error


class Models:
    """Predictors by name: those given, loaded at once, and the bundled ones, when first asked for.

    Safe to use from many threads: nothing that a predictor keeps between calls depends on them.

    Args:
        given: bundled names, model folders, run folders or ``.ckpt`` files.
        device: as ``captioner.load`` takes it.

    Raises:
        UsageError: no such device.
        CheckpointError: a given model cannot be loaded.
    """

    def __init__(self, given: Sequence[str] = (), device: str = "auto") -> None:
        self._device = device
        self._lock = threading.Lock()
        self._loaded: dict[str, Predictor] = {}
        self._samplers: dict[str, Predictor | None] = {}
        self._places: dict[str, str] = {}
        for model in given:
            self._places[_label(model, self._places)] = model
        for name in self._places:
            self.get(name)
        for name in bundled_models():
            self._places.setdefault(name, name)

    @property
    def names(self) -> list[str]:
        """What can be asked for, the default first."""
        return list(self._places)

    def get(self, name: str | None = None) -> Predictor:
        """The model of this name, or the default.

        Raises:
            UsageError: no such name.
        """
        name = name or self.names[0]
        if name not in self._places:
            raise UsageError(unknown("model", name, self.names))
        if name not in self._loaded:
            with self._lock:  # two visitors at once must not load it twice
                if name not in self._loaded:
                    predictor = load(self._places[name], self._device)
                    predictor.name = name  # the path is the server's, and goes into every file
                    self._samplers[name] = predictor.sampler()
                    self._loaded[name] = predictor
        return self._loaded[name]

    def draws(self, name: str | None = None) -> bool:
        """Whether the model attends to places that it draws."""
        return self._samplers[self.get(name).name] is not None

    def caption(
        self,
        photo: Photo,
        model: str | None = None,
        beam_size: int | None = None,
        length_penalty: float | None = None,
        details: bool = True,
    ) -> tuple[Caption, ...]:
        """The captions that the beam found, best first.

        Args:
            photo: what to look at.
            model: a name of ``names``; None for the default.
            beam_size: hypotheses kept while searching, 1 to 20; None for the model's own.
            length_penalty: as ``captioner.decoding.Decoding`` has it; None for the model's own.
            details: whether to say all there is to say: layers, heads, earlier words, centres.

        Raises:
            UsageError: a number out of range; no such model.
        """
        predictor = self.get(model)
        given = {"beam_size": beam_size, "length_penalty": length_penalty}
        decoding = predictor.decoding.with_options(
            {name: value for name, value in given.items() if value is not None}
        )
        if (beam_size or 1) > MAX_BEAM or not 0 <= (length_penalty or 0) <= 3:
            raise UsageError(
                f"expected a beam size from 1 to {MAX_BEAM} and a length penalty from 0 to 3, "
                f"got {decoding.beam_size} and {decoding.length_penalty:g}"
            )
        (best,) = predictor.captions([photo.picture], decoding, details=details)
        if isinstance(best, ImageError):
            raise best
        return tuple(_signed(found, photo) for found in (best, *best.alternatives))

    def explain(self, photo: Photo, sentence: str, model: str | None = None) -> Caption:
        """The given sentence as if the model had written it.

        Raises:
            UsageError: no words, or too many of them; no such model.
        """
        _check(sentence)
        return _signed(self.get(model).explain(photo.picture, sentence), photo)

    def redraw(self, photo: Photo, sentence: str, model: str | None = None) -> Caption:
        """The given sentence, the place that hard attention looks at for each word drawn anew.

        Raises:
            UsageError: the model draws nothing; or as ``explain``.
        """
        _check(sentence)
        name = self.get(model).name
        sampler = self._samplers[name]
        if sampler is None:
            raise UsageError(f"{name} draws nothing: its attention is not hard; choose another")
        return _signed(sampler.explain(photo.picture, sentence), photo)


def _label(model: str, taken: dict[str, str]) -> str:
    """The shortest name that tells a model from the others: that of its run or its folder."""
    path = Path(model)
    if path.parts[-2:] == BEST.parts:
        path = path.parents[1]
    elif path.name == MODEL:
        path = path.absolute().parent
    label = path.name or model
    number = 2
    while label in taken:
        label = f"{path.name} ({number})"
        number += 1
    return label


def _signed(caption: Caption, photo: Photo) -> Caption:
    return replace(caption, image=photo.name)


def _check(sentence: str) -> None:
    """Refuses what no caption is like: the work grows with the square of the words."""
    if len(sentence.split()) > MAX_WORDS or len(sentence) > 10 * MAX_WORDS:
        raise UsageError(f"expected a sentence of at most {MAX_WORDS} words; shorten it")
