"""The Python interface: caption images with a model."""

import copy
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor

from captioner import explanations, limits
from captioner.caption import Attends, Caption
from captioner.confidence import SAMPLES, Calibration, agreement
from captioner.data.pixels import PixelBatch, read_batch, read_batches
from captioner.decoding import Decoding, Hypothesis, score_captions, search
from captioner.errors import ImageError, UsageError, unknown
from captioner.images import Geometry, Source
from captioner.model_folder import NOT_CALIBRATED
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.distributions import hard_attention, samples_locations
from captioner.models.monte_carlo import over_paths
from captioner.sampling import WordSampling, sample_captions, sample_words
from captioner.text import MAX_WORD, UNK, Tokenizer, Vocabulary, is_plain, join

Method = Decoding | WordSampling
Results = Iterator[Caption | ImageError]
MAX_TEXT = 20_000  # characters of a sentence


class BasePredictor:
    """What commands, the app and Python use of any captioner: see ``Predictor`` for the package's own.

    Args:
        name: the model's name in captions.
        decoding: the default search.
        device: where the model is.

    Attributes:
        vocabulary: the words that the model knows; None if it can read any.
        supervision: weight of the mask supervision of its attention in training; 0 for none.
        draws_locations: whether hard attention samples a new location in every pass.
        calibration: of the confidence of its captions; None if it was not calibrated.
    """

    vocabulary: Vocabulary | None = None
    supervision: float = 0.0
    draws_locations: bool = False
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
            images: what ``captioner.images.load`` reads: a path, bytes, an open file, a Pillow image,
                or an array or tensor (H, W), (H, W, 3) or (H, W, 4); or a list of these.
            batch_size: number of images in a batch, up to 512.
            details: also return ``layers``, ``past`` and ``centre``, which takes one more pass.
            confidence: also estimate ``Caption.confidence``, which samples 24 more captions. It needs
                the model's own search, so it excludes most ``options``.
            options: ``beam_size``, ``min_length``, ``max_length``, ``length_penalty``, ``samples``,
                ``no_repeat``, ``diverse_groups`` and ``diversity``: see ``Decoding``; by default the
                model's own values. ``num_captions`` is the least beam size. With ``temperature``,
                ``top_k``, ``top_p`` or ``seed``, captions are sampled instead: see ``WordSampling``; the
                most probable one is returned, the others are its ``alternatives``.

        Raises:
            UsageError: an unknown option, or a value out of range; details of sampled hard attention;
                confidence of a model that was not calibrated, or of another search than its own.
            ImageError: an image cannot be read; ``captions`` returns such errors instead.
        """
        decoding = self.method(options)
        several = isinstance(images, list | tuple)
        sources: Any = images if several else [images]
        results = []
        found = self.captions(sources, decoding, batch_size, details, confidence=confidence)
        for result in found:
            if isinstance(result, ImageError):
                raise result
            results.append(result)
        return results if several else results[0]

    def has_confidence(self, decoding: Method) -> bool:
        """Return whether the confidence of captions of this search or sampling is known."""
        return self.calibration is not None and decoding == self.decoding

    def check_confidence(self, decoding: Method) -> None:
        """Raise ``UsageError`` if ``has_confidence`` is false."""
        if self.calibration is None:
            raise UsageError(NOT_CALIBRATED.format(self.name))
        if not self.has_confidence(decoding):
            raise UsageError(
                "the confidence was measured for the model's own search: leave out the options of the "
                "search and of sampling, and a num_captions above the beam size; or leave out confidence"
            )

    def method(self, options: Mapping[str, Any]) -> Method:
        """Return the search or the sampling that options describe; those that are None do not count.

        Raises:
            UsageError: an unknown option, or a value out of range.
        """
        given = {name: value for name, value in options.items() if value is not None}
        if given.keys() & set(limits.SAMPLING):
            return WordSampling.from_options(given, self.decoding.max_length)
        count = given.pop("num_captions", 1)
        limits.check("num_captions", count, limits.WORD_SAMPLING["num_captions"])
        groups = given.get("diverse_groups", self.decoding.diverse_groups)
        limits.check("diverse_groups", groups, limits.DECODING["diverse_groups"])
        given.setdefault("beam_size", groups * ceil(self.decoding.beam_size / groups))
        decoding = self.decoding.with_options(given)
        return replace(decoding, beam_size=max(decoding.beam_size, groups * ceil(count / groups)))

    def captions(
        self,
        images: Sequence[Source],
        decoding: Method | None = None,
        batch_size: int = 64,
        details: bool = False,
        maps: bool = True,
        confidence: bool = False,
    ) -> Results:
        """Stream a caption, or the error, of each image in order; arguments as in ``caption``.

        Without ``maps``, attention is left out where computing it takes time: ``Caption.weights`` is
        then empty, (T, 0, 0), and there are no alternatives.

        Raises:
            UsageError: details of sampled hard attention, a batch size out of range, or confidence of
                a model that was not calibrated.
        """
        limits.check("batch_size", batch_size, limits.BATCH)
        method = decoding or self.decoding
        if confidence:
            self.check_confidence(method)
        return self._stream(images, method, batch_size, details, maps, confidence)

    def _stream(
        self, images: Sequence[Source], decoding: Method, batch_size: int, *given: bool
    ) -> Results:
        """Stream the results of ``captions``; ``given`` are details, maps and confidence."""
        raise NotImplementedError

    def explain(self, image: Source, text: str, *, samples: int | None = None) -> Caption:
        """Return a given sentence as a caption of the image, with details.

        The map of a word shows where the model attended to predict it, so it depends only on the words
        before it.

        Args:
            image: as for ``caption``.
            text: the sentence, of at most 200 words of 100 letters.
            samples: see ``Decoding``; None means the model's own value.

        Raises:
            ImageError: the image cannot be read.
            UsageError: the sentence has no words or too many; ``samples`` is out of range, or above 1
                without sampled hard attention.
        """
        raise NotImplementedError

    def explain_by(self, image: Source, caption: Caption, method: str) -> Caption:  # noqa: ARG002
        """Return a caption of the image with the maps of another method than attention.

        Args:
            image: as for ``caption``.
            caption: by this model, with details for the rollout of a model of another library.
            method: one of ``captioner.limits.METHODS``; see ``captioner.explanations``.

        Raises:
            ImageError: the image cannot be read.
            UsageError: the model or the installation lacks what the method needs.
        """
        _check_method(method)
        if method == "attention":
            return caption
        if method != "rollout" or caption.rollout is None:
            raise UsageError(f"{self.name} has no {method}, as it is no model of this package")
        return caption.explained(caption.rollout, method)

    def sampler(self) -> "BasePredictor | None":
        """Return this model with hard attention that samples a location per word in every call.

        None if the attention is not ``Hard``.
        """
        return None

    def fingerprint(self) -> str:
        """Return a SHA-256 of the configuration, the vocabulary and the weights."""
        raise NotImplementedError


class Predictor(BasePredictor):
    """A captioner for images of any size and format.

    Args:
        captioner: the model.
        name: the model's name in captions.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ``mps``.
        decoding: the default search.
        supervision: weight of the mask supervision of its attention in training; 0 for none.
        calibration: of the confidence of its captions, if it was calibrated.

    Raises:
        UsageError: no such device.
    """

    def __init__(
        self,
        captioner: Captioner,
        name: str,
        device: str = "auto",
        decoding: Decoding = Decoding(),  # noqa: B008 - frozen
        supervision: float = 0.0,
        calibration: Calibration | None = None,
    ) -> None:
        super().__init__(name, decoding, torch_device(device))
        self.captioner = captioner.to(self.device).eval()
        self.supervision, self.calibration = supervision, calibration

    @property
    def vocabulary(self) -> Vocabulary:  # type: ignore[override]
        """The vocabulary of the model."""
        return self.captioner.vocabulary

    @property
    def mechanism(self) -> str:  # type: ignore[override]
        """Description of the attention."""
        return self.captioner.decoder.mechanism

    @property
    def draws_locations(self) -> bool:  # type: ignore[override]
        """Whether hard attention samples a new location in every pass."""
        return samples_locations(self.captioner.decoder)

    def _stream(
        self, images: Sequence[Source], decoding: Method, batch_size: int, *given: bool
    ) -> Results:
        details, _, confidence = given  # maps cost nothing here
        if details and self.draws_locations:
            raise UsageError(
                "details=True needs a second pass, and this model samples other locations in every "
                "pass (test_time: sample): leave details out, or use explain(image, text)"
            )
        for batch in read_batches(images, batch_size, self.captioner.encoder.preprocessing):
            results: dict[int, Caption | ImageError] = dict(batch.failed)
            if batch.indices:
                results |= self._captions(images, batch, decoding, details, confidence)
            yield from (results[index] for index in sorted(results))

    def _captions(
        self,
        images: Sequence[Source],
        batch: PixelBatch,
        decoding: Method,
        details: bool,
        confidence: bool,
    ) -> Iterator[tuple[int, Caption]]:
        """Yield the index and the caption of each image that could be read."""
        decoder, annotations = self.captioner.decoder, self._annotate(batch.pixels)
        if isinstance(decoding, WordSampling):
            samples = self.decoding.samples
            beams = sample_captions(decoder, annotations, decoding, samples)
        else:
            samples = decoding.samples
            beams = search(decoder, annotations, decoding)
        if confidence:
            agreements = self.agreements(annotations, [beam[0].tokens for beam in beams])
        for row, (index, hypotheses) in enumerate(zip(batch.indices, beams, strict=True)):
            if details:  # the search has no centre, layers and past
                tokens = [h.tokens for h in hypotheses]
                scored = score_captions(decoder, annotations.of(row), tokens)
                hypotheses = [
                    replace(h, centre=s.centre, layers=s.layers, past_weights=s.past_weights)
                    for h, s in zip(hypotheses, scored, strict=True)
                ]
            geometry = _geometry(batch.sizes[row], annotations, row)
            source = images[index]
            best, *others = [self._caption(source, h, geometry, samples) for h in hypotheses]
            if confidence and self.calibration is not None:
                best = replace(best, confidence=self.calibration(agreements[row]))
            yield index, replace(best, alternatives=tuple(others))

    def agreements(
        self, annotations: Annotations, captions: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return how far sampled captions agree with a caption of each image, given as ids.

        See ``captioner.confidence.agreement``. The result does not depend on the other images.
        """
        options = WordSampling(SAMPLES, max_length=self.decoding.max_length)
        decoder, words = self.captioner.decoder, self.vocabulary.decode
        sampled = sample_words(decoder, annotations, options)
        return [
            agreement(words(caption), list(map(words, samples)))
            for caption, samples in zip(captions, sampled, strict=True)
        ]

    def explain(self, image: Source, text: str, *, samples: int | None = None) -> Caption:
        """Return a given sentence as a caption of the image, with details; see ``BasePredictor``.

        Words outside the vocabulary are scored as ``<unk>`` and listed in ``Caption.unknown``. The
        first map is the same for every sentence. ``LSTMDecoder`` attends before it reads the previous
        word, so its second map is the same for every sentence, too.
        """
        words = sentence_words(text)
        annotations, size = self._read(image)
        ids = self.vocabulary.encode(words)
        samples = self.decoding.with_options({"beam_size": 1, "samples": samples}).samples
        (hypothesis,) = score_captions(self.captioner.decoder, annotations, [ids], samples)
        geometry = _geometry(size, annotations, 0)
        return self._caption(image, hypothesis, geometry, samples, words)

    def explain_by(self, image: Source, caption: Caption, method: str) -> Caption:
        """Return a caption of the image with the maps of another method; see ``BasePredictor``."""
        _check_method(method)
        if method == "attention":
            return caption
        annotations, _ = self._read(image)
        ids = self.vocabulary.encode(list(caption.words))
        maps = explanations.explain(self.captioner.decoder, annotations, ids, method)
        rows, columns = caption.geometry.grid  # without the padding that may follow boxes
        cells = maps.numpy().reshape(len(maps), -1)[:, : rows * columns]
        return caption.explained(cells.reshape(-1, rows, columns), method)

    def sampler(self) -> "Predictor | None":
        """Return a sampling model; the encoder is shared, the decoder copied."""
        decoder = copy.deepcopy(self.captioner.decoder)
        distributions = hard_attention(decoder)
        if not distributions:
            return None
        for distribution in distributions:
            distribution.test_time = "sample"
        plain = self.captioner
        captioner = Captioner(plain.encoder, plain.neck, decoder, plain.vocabulary, plain.config)
        decoding = replace(self.decoding, samples=1)
        return Predictor(
            captioner, self.name, str(self.device), decoding, self.supervision, self.calibration
        )

    def fingerprint(self) -> str:
        """Return a SHA-256 of the configuration, the vocabulary and the weights."""
        captioner = self.captioner
        digest = hashlib.sha256(json.dumps(captioner.config, sort_keys=True).encode())
        digest.update(captioner.vocabulary.fingerprint.encode())
        digest.update(captioner.encoder.fingerprint().encode())
        update_with_weights(digest, captioner)
        return digest.hexdigest()

    def _read(self, image: Source) -> tuple[Annotations, tuple[int, int]]:
        """Return the annotations of an image, and its width and height; raise ``ImageError``."""
        batch = read_batch([image], range(1), self.captioner.encoder.preprocessing)
        if batch.failed:
            raise batch.failed[0]
        return self._annotate(batch.pixels), batch.sizes[0]

    @torch.inference_mode()
    def _annotate(self, pixels: Tensor) -> Annotations:
        return self.captioner.neck(self.captioner.encoder(pixels.to(self.device)))

    def _caption(
        self,
        image: Source,
        hypothesis: Hypothesis,
        geometry: Geometry,
        samples: int,
        words: Sequence[str] | None = None,
    ) -> Caption:
        def array(values: Tensor | None) -> Any:
            return None if values is None else values.float().numpy()

        def maps(values: Tensor | None) -> Any:
            """Convert weights of all regions to maps, without the padding that follows boxes."""
            rows, columns = geometry.grid
            return (
                None
                if values is None
                else array(torch.unflatten(values[..., : rows * columns], -1, (rows, columns)))
            )

        decoder = self.captioner.decoder
        modes = {hard.test_time for hard in hard_attention(decoder)}
        attends: Attends = next((mode for mode in ("argmax", "sample") if mode in modes), "soft")
        words = self.vocabulary.decode(hypothesis.tokens) if words is None else words
        return Caption(
            image=str(image) if isinstance(image, str | Path) else None,
            text=join(words),
            words=tuple(words),
            log_prob=hypothesis.log_prob,
            word_log_probs=tuple(hypothesis.log_probs),
            score=hypothesis.score,
            weights=maps(hypothesis.weights),
            geometry=geometry,
            model=self.name,
            mechanism=over_paths(decoder.mechanism, samples),
            attends=attends,
            layers=maps(hypothesis.layers),
            past=array(hypothesis.past_weights),
            centre=array(hypothesis.centre),
            window=decoder.window,
            has_sentinel=decoder.has_sentinel,
            unknown=tuple(i for i, token in enumerate(hypothesis.tokens) if token == UNK),
        )


def _geometry(size: tuple[int, int], annotations: Annotations, row: int) -> Geometry:
    """Return where the regions of one image are; padding follows its boxes."""
    if annotations.boxes is None or annotations.mask is None:
        return Geometry(*size, annotations.grid)
    boxes = annotations.boxes[row, annotations.mask[row]].double().cpu() * torch.tensor(size * 2)
    return Geometry(*size, (1, len(boxes)), tuple(map(tuple, boxes.tolist())))


def update_with_weights(digest: Any, module: torch.nn.Module) -> None:
    """Add the names and the bytes of a module's weights to a hash."""
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(
            tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
        )


def sentence_words(text: str) -> list[str]:
    """Return the words of a sentence; raise ``UsageError`` if they cannot be explained."""
    most = limits.DECODING["max_length"].high
    words = Tokenizer()(text) if isinstance(text, str) and len(text) <= MAX_TEXT else []
    if not words or len(words) > most or not all(map(is_plain, words)):
        raise UsageError(
            f"a sentence to explain has 1 to {most} words of at most {MAX_WORD} letters, without "
            f"control characters, got {text!r:.80}"
        )
    return words


def _check_method(method: str) -> None:
    if method not in limits.METHODS:
        raise UsageError(unknown("method", method, limits.METHODS))


def torch_device(name: str) -> torch.device:
    """Return a device by its name, or by ``auto``; raise ``UsageError`` if it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise UsageError(
            f"device {name!r:.80} cannot be used here: choose auto, cpu, cuda, cuda:1, … or mps"
        ) from error
    return device
