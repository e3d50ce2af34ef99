"""The Python interface: caption images with a model of this package."""

import copy
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from captioner.data.pixels import PixelBatch, read_batch, read_batches
from captioner.errors import ImageError, UsageError
from captioner.language.vocabulary import UNK, Vocabulary, join
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.distributions import hard_attention, samples_locations
from captioner.models.monte_carlo import over_paths
from captioner.photos.geometry import Geometry
from captioner.photos.images import Source, path_of
from captioner.predict.base_predictor import (
    BasePredictor,
    Results,
    SearchOptions,
    Wanted,
    sentence_words,
)
from captioner.predict.caption import Attends, Caption
from captioner.predict.confidence import SAMPLES, agreement
from captioner.search.beam import score_captions, search
from captioner.search.hypotheses import Hypothesis
from captioner.search.options import Decoding, WordSampling
from captioner.search.sampling import sample_captions, sample_words
from captioner.store.calibration import Calibration


class Predictor(BasePredictor):
    """A captioner for images of any size and format.

    Args:
        captioner: the model.
        name, decoding, supervision, calibration: as in ``BasePredictor``.
        device: ``auto`` (a GPU if there is one), ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

    Raises:
        UsageError: no such device.
    """

    vocabulary: Vocabulary

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
        decoder = captioner.decoder
        self.vocabulary, self.mechanism = captioner.vocabulary, decoder.mechanism
        self.draws_locations = samples_locations(decoder)
        self.has_window = decoder.window is not None

    def _stream(
        self, images: Sequence[Source], options: SearchOptions, batch_size: int, wanted: Wanted
    ) -> Results:
        if wanted.details and self.draws_locations:
            raise UsageError(
                "details=True needs a second pass, and this model samples other locations in every "
                "pass (test_time: sample): leave details out, or use explain(image, text)"
            )
        for batch in read_batches(images, batch_size, self.captioner.encoder.preprocessing):
            results: dict[int, Caption | ImageError] = dict(batch.failed)
            if batch.indices:
                results |= self._captions(images, batch, options, wanted)
            yield from (results[index] for index in sorted(results))

    def _captions(
        self, images: Sequence[Source], batch: PixelBatch, options: SearchOptions, wanted: Wanted
    ) -> Iterator[tuple[int, Caption]]:
        """Yield the index and the caption of each image that could be read."""
        decoder, annotations = self.captioner.decoder, self._annotate(batch.pixels)
        if isinstance(options, WordSampling):
            samples = self.decoding.samples
            beams = sample_captions(decoder, annotations, options, samples)
        else:
            samples = options.samples
            beams = search(decoder, annotations, options)
        if wanted.confidence:
            agreements = self.agreements(annotations, [beam[0].tokens for beam in beams])
        for row, (index, hypotheses) in enumerate(zip(batch.indices, beams, strict=True)):
            if wanted.details:  # the search has no centre, layers and past
                tokens = [h.tokens for h in hypotheses]
                scored = score_captions(decoder, annotations.of(row), tokens)
                hypotheses = [
                    replace(h, centre=s.centre, layers=s.layers, past_weights=s.past_weights)
                    for h, s in zip(hypotheses, scored, strict=True)
                ]
            geometry = _geometry(batch.sizes[row], annotations, row)
            source = images[index]
            best, *others = [self._caption(source, h, geometry, samples) for h in hypotheses]
            if wanted.confidence and self.calibration is not None:
                best = replace(best, confidence=self.calibration(agreements[row]))
            yield index, replace(best, alternatives=tuple(others))

    def agreements(
        self, annotations: Annotations, captions: Sequence[Sequence[int]]
    ) -> list[float]:
        """Return how far sampled captions agree with a caption of each image, given as ids.

        See ``captioner.predict.confidence.agreement``. The result does not depend on the other images.
        """
        options = WordSampling(SAMPLES, max_length=self.decoding.max_length)
        decoder, words = self.captioner.decoder, self.vocabulary.decode
        sampled = sample_words(decoder, annotations, options)
        return [
            agreement(words(caption), list(map(words, samples)))
            for caption, samples in zip(captions, sampled, strict=True)
        ]

    def _explain(
        self, image: Source, caption: Caption | str, method: str, samples: int | None
    ) -> Caption:
        if isinstance(caption, Caption) and method == "attention":
            return caption
        words = list(caption.words) if isinstance(caption, Caption) else sentence_words(caption)
        batch = read_batch([image], range(1), self.captioner.encoder.preprocessing)
        if batch.failed:
            raise batch.failed[0]
        annotations, ids = self._annotate(batch.pixels), self.vocabulary.encode(words)
        geometry = _geometry(batch.sizes[0], annotations, 0)
        if not isinstance(caption, Caption):
            samples = self.decoding.with_options({"beam_size": 1, "samples": samples}).samples
            (hypothesis,) = score_captions(self.captioner.decoder, annotations, [ids], samples)
            caption = self._caption(image, hypothesis, geometry, samples, words)
        elif geometry != caption.geometry:
            raise UsageError(
                "the caption is of a photo of another size or other regions: to explain its words here, "
                "give caption.text"
            )
        if method == "attention":
            return caption
        from captioner.predict import explanations  # only `explain` needs it

        maps = explanations.explain(self.captioner.decoder, annotations, ids, method)
        return caption.with_maps(_on_grid(maps, geometry).numpy(), method)

    def sampler(self) -> "Predictor | None":
        """Return a sampling model; the encoder is shared, the decoder copied."""
        decoder, plain = copy.deepcopy(self.captioner.decoder), self.captioner
        distributions = hard_attention(decoder)
        if not distributions:
            return None
        for distribution in distributions:
            distribution.test_time = "sample"
        captioner = Captioner(plain.encoder, plain.neck, decoder, plain.vocabulary, plain.config)
        return Predictor(captioner, self.name, str(self.device), replace(self.decoding, samples=1))

    def fingerprint(self) -> str:
        """Return a SHA-256 of the configuration, the vocabulary and the weights."""
        captioner = self.captioner
        digest = hashlib.sha256(json.dumps(captioner.config, sort_keys=True).encode())
        digest.update(captioner.vocabulary.fingerprint.encode())
        digest.update(captioner.encoder.fingerprint().encode())
        update_with_weights(digest, captioner)
        return digest.hexdigest()

    @torch.inference_mode()
    def _annotate(self, pixels: Tensor) -> Annotations:
        return self.captioner.annotate(pixels.to(self.device))

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
            return None if values is None else _on_grid(values, geometry).float().numpy()

        decoder = self.captioner.decoder
        modes = {hard.test_time for hard in hard_attention(decoder)}
        attends: Attends = next((mode for mode in ("argmax", "sample") if mode in modes), "soft")
        words = self.vocabulary.decode(hypothesis.tokens) if words is None else words
        return Caption(
            image=path_of(image),
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


def _on_grid(values: Float[Tensor, "*axes L"], geometry: Geometry) -> Tensor:
    """Return values of all regions as maps, without the padding that may follow boxes."""
    rows, columns = geometry.grid
    return torch.unflatten(values[..., : rows * columns], -1, (rows, columns))


def _geometry(size: tuple[int, int], annotations: Annotations, row: int) -> Geometry:
    """Return where the regions of one image are, without the padding after its boxes."""
    if annotations.boxes is None or annotations.mask is None:
        return Geometry(*size, annotations.grid)
    boxes = annotations.boxes[row, annotations.mask[row]].double().cpu() * torch.tensor(size * 2)
    return Geometry(*size, (1, len(boxes)), tuple(map(tuple, boxes.tolist())))


def update_with_weights(digest: Any, module: torch.nn.Module) -> None:
    """Add the names and the bytes of a module's weights to a hash."""
    for name, tensor in sorted(module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())


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
