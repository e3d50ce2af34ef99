"""The interface to any captioner, which the commands, the app and Python code use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from typing import Any, NamedTuple, overload

import torch

from captioner import limits
from captioner.errors import ImageError, UsageError, unknown
from captioner.language.vocabulary import MAX_WORD, Tokenizer, Vocabulary, is_plain
from captioner.photos.images import Source
from captioner.predict.caption import Caption
from captioner.search.options import Decoding, WordSampling
from captioner.store.calibration import Calibration
from captioner.store.model_folder import NOT_CALIBRATED

SearchOptions = Decoding | WordSampling
Results = Iterator[Caption | ImageError]


class Wanted(NamedTuple):
    """What captions have besides their words; see ``BasePredictor.captions``."""

    details: bool
    maps: bool
    confidence: bool


class BasePredictor:
    """The interface to any captioner; ``Predictor`` is that of the package's own models.

    Attributes:
        name: the model's name in captions.
        decoding: the default search.
        device: where the model is.
        vocabulary: the words that the model knows; None if it accepts any word.
        supervision: weight of the mask supervision of its attention in training; 0 for none.
        draws_locations: whether hard attention samples a new location in every pass.
        has_window: whether local attention has a window, whose centre is one of the details.
        calibration: computes the confidence of captions; None if the model was not calibrated.
    """

    vocabulary: Vocabulary | None = None
    supervision: float = 0.0
    draws_locations: bool = False
    has_window: bool = False
    calibration: Calibration | None = None
    mechanism: str

    def __init__(self, name: str, decoding: Decoding, device: torch.device) -> None:
        self.name, self.decoding, self.device = name, decoding, device

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, {self.mechanism!r}, device='{self.device}')"

    @overload
    def caption(self, images: list[Source], **options: Any) -> list[Caption]: ...
    @overload
    def caption(self, images: Source, **options: Any) -> Caption: ...

    def caption(
        self,
        images: Source | list[Source],
        *,
        batch_size: int = 64,
        details: bool = False,
        confidence: bool = False,
        **options: Any,
    ) -> Caption | list[Caption]:
        """Caption an image, or each image of a list.

        Args:
            images: what ``photos.images.load`` reads: a path, bytes, an open file, a Pillow image,
                an array or tensor (H, W), (H, W, 3) or (H, W, 4), or a ``Photo``; or a list of these.
            batch_size: number of images in a batch, up to 512.
            details: also return ``layers``, ``past`` and ``centre``, which takes one more pass.
            confidence: also estimate ``Caption.confidence``, which samples 24 more captions. It needs
                the model's own search, so it excludes most ``options``.
            options: those of ``Decoding``; by default the model's own values. The beam size is at least
                ``num_captions``. With ``temperature``, ``top_k``, ``top_p`` or ``seed``, captions are
                sampled instead: see ``WordSampling``. The most probable one is returned; the others
                are its ``alternatives``.

        Raises:
            UsageError: an unknown option, or a value out of range; details of sampled hard attention;
                confidence of a model that was not calibrated, or of another search than its own.
            ImageError: an image cannot be read; ``captions`` returns such errors instead.
        """
        decoding, most = self.search_options(options), options.get("num_captions")
        several = isinstance(images, list | tuple)
        sources: Any = images if several else [images]
        results = []
        for result in self.captions(sources, decoding, batch_size, details, confidence=confidence):
            if isinstance(result, ImageError):
                raise result
            if most is not None:  # a beam may have more
                result = replace(result, alternatives=result.alternatives[: most - 1])
            results.append(result)
        return results if several else results[0]

    def has_confidence(self, decoding: SearchOptions) -> bool:
        """Return whether captions of this search or sampling can have a confidence."""
        return self.calibration is not None and decoding == self.decoding

    def check_confidence(self, decoding: SearchOptions) -> None:
        """Raise ``UsageError`` if ``has_confidence`` is false."""
        if self.calibration is None:
            raise UsageError(NOT_CALIBRATED.format(self.name))
        if decoding != self.decoding:
            raise UsageError(
                "the confidence was measured for the model's own search: leave out the options of the "
                "search and of sampling, and a num_captions above the beam size"
            )

    def search_options(self, options: Mapping[str, Any]) -> SearchOptions:
        """Return the search or the sampling that options describe; options that are None are ignored.

        A ``min_length`` above the model's ``max_length`` raises that too, unless it is given.

        Raises:
            UsageError: an unknown option, or a value out of range.
        """
        known = limits.WORD_SAMPLING | limits.DECODING
        given = {name: value for name, value in options.items() if value is not None}
        for name in options:
            if name not in known:
                raise UsageError(unknown("option", name, known))
        for name, value in given.items():
            limits.check(name, value, known[name])
        longest = max(self.decoding.max_length, given.get("min_length", 1))
        if given.keys() & set(limits.SAMPLING):
            return WordSampling(max_length=longest).with_options(given)
        count = given.pop("num_captions", 1)
        groups = given.get("diverse_groups", self.decoding.diverse_groups)
        given.setdefault("max_length", longest)
        given.setdefault("beam_size", groups * ceil(self.decoding.beam_size / groups))
        decoding = self.decoding.with_options(given)
        return replace(decoding, beam_size=max(decoding.beam_size, groups * ceil(count / groups)))

    def captions(
        self,
        images: Sequence[Source],
        decoding: SearchOptions | None = None,
        batch_size: int = 64,
        details: bool = False,
        maps: bool = True,
        confidence: bool = False,
    ) -> Results:
        """Stream a caption, or the error, of each image in order; arguments as in ``caption``.

        Without ``maps``, attention is not returned if computing it takes extra time. In that case
        ``Caption.weights`` is empty, (T, 0, 0), and there are no alternatives.

        Raises:
            UsageError: as ``caption``.
        """
        limits.check("batch_size", batch_size, limits.BATCH)
        options = decoding or self.decoding
        if confidence:
            self.check_confidence(options)
        wanted = Wanted(details, maps, confidence)
        return self._stream(images, options, batch_size, wanted)

    def _stream(
        self, images: Sequence[Source], options: SearchOptions, batch_size: int, wanted: Wanted
    ) -> Results:
        raise NotImplementedError

    def explain(
        self,
        image: Source,
        caption: Caption | str,
        method: str = "attention",
        *,
        samples: int | None = None,
    ) -> Caption:
        """Return a caption of the image, or a sentence about it, with the map of each word.

        By default, the map of a word shows where the model attended to predict it, so it depends only
        on the words before it.

        Args:
            image: as for ``caption``.
            caption: a caption of this image by this model; or a sentence of at most 200 words of 100
                letters, whose caption has details. With ``rollout``, a model of another library needs
                a caption with details, too.
            method: one of ``captioner.limits.METHODS``; see ``captioner.predict.explanations``.
            samples: for a sentence, see ``Decoding``; None means the model's own value.

        Raises:
            ImageError: the image cannot be read.
            UsageError: a sentence without words or with too many; a caption of another model or photo;
                ``samples`` that do not fit the model; the model or the installation lacks what the
                method needs.
        """
        if method not in limits.METHODS:
            raise UsageError(unknown("method", str(method), limits.METHODS))
        if isinstance(caption, Caption) and caption.model != self.name:
            raise UsageError(
                f"the caption is of another model ({caption.model!r:.80}): to explain its words here, "
                "give caption.text"
            )
        return self._explain(image, caption, method, samples)

    def _explain(
        self, image: Source, caption: Caption | str, method: str, samples: int | None
    ) -> Caption:
        raise NotImplementedError

    def sampler(self) -> "BasePredictor | None":
        """Return this model with new locations in every call, or None without hard attention."""
        return None

    def fingerprint(self) -> str:
        """Return a text that changes with the model: its weights, options and vocabulary."""
        raise NotImplementedError


def sentence_words(text: str, most: float | int = limits.DECODING["max_length"].high) -> list[str]:
    """Return the words of a sentence; raise ``UsageError`` if they cannot be explained."""
    words = Tokenizer()(text) if isinstance(text, str) else []
    if not words or len(words) > most or not all(map(is_plain, words)):
        raise UsageError(
            f"a sentence to explain has 1 to {most} words of at most {MAX_WORD} letters, without "
            f"control characters, got {text!r:.80}"
        )
    return words
