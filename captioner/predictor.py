"""Load once, ask many times: pictures → captions with the places looked at."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from jaxtyping import Float32

from captioner import checkpoint
from captioner.data.pixels import read_batch, read_batches
from captioner.decoding import Decoding, force, search
from captioner.errors import ImageError, UsageError
from captioner.images import Geometry, Source
from captioner.memory import keep_memory
from captioner.models.annotations import Annotations
from captioner.models.attention.distributions import hard_attention, samples_locations
from captioner.models.captioner import Captioner
from captioner.models.monte_carlo import over_paths
from captioner.shipped import DEFAULT_MODEL, models
from captioner.text import Tokenizer, Vocabulary, join
from captioner.trace import Hypothesis


@dataclass(frozen=True, eq=False)
class Caption:
    """A sentence about a picture.

    Attributes:
        image: the picture's path, or None if it was not given as one.
        text: the sentence.
        words: its T words as the model wrote them.
        log_prob: log-probability of the sentence in nats, its end included.
        word_log_probs: of each word given those before it.
        weights: where the model looked for each word.
        geometry: how the grid lies on the original picture.
        model: name of the model that wrote it.
        mechanism: how it attends, e.g. ``LSTMDecoder: Additive × Soft``; where sampled locations were
            averaged, over how many paths.
        layers: the weights of every layer and head, if details were asked for and there are several.
        past: where details were asked for and the model attends to what it wrote: how much each input
            word counts when a word is written; input 0 is ``<start>``, input j is ``words[j - 1]``;
            0 for a later one.
        centre: the (row, column) that local attention looks around, in cells; cell r covers [r, r + 1).
        window: how many cells local attention reaches to either side of its centre.
        alternatives: what else was found, best first.
    """

    image: str | None
    text: str
    words: tuple[str, ...]
    log_prob: float
    word_log_probs: tuple[float, ...]
    weights: Float32[np.ndarray, "T rows columns"]
    geometry: Geometry
    model: str
    mechanism: str = ""
    layers: Float32[np.ndarray, "T layers heads rows columns"] | None = None
    past: Float32[np.ndarray, "T layers past_heads T"] | None = None
    centre: Float32[np.ndarray, "T 2"] | None = None
    window: int | None = None
    alternatives: tuple["Caption", ...] = ()

    def record(self) -> dict[str, Any]:
        """As ``captioner caption`` writes it to JSON."""
        return {
            "image": self.image,
            "caption": self.text,
            "words": list(self.words),
            "log_prob": round(self.log_prob, 4),
            "word_log_probs": [round(value, 4) for value in self.word_log_probs],
            "model": self.model,
        }


class Predictor:
    """A captioner ready for pictures of any size and format.

    Args:
        captioner: the model.
        name: what captions are signed with.
        device: ``auto`` takes a GPU where there is one.
        decoding: how captions are searched for unless a call says otherwise.
        supervision: the weight of the masks that supervised its attention; 0 where none did.

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
    ) -> None:
        self.name = name
        self.supervision = supervision
        self.decoding = decoding
        self.device = _device(device)
        self.captioner = captioner.to(self.device).eval()

    @property
    def vocabulary(self) -> Vocabulary:
        """The words the model knows."""
        return self.captioner.vocabulary

    @overload
    def caption(
        self, images: list[Source], beam_size: int | None = ..., **options: Any
    ) -> list[Caption]: ...
    @overload
    def caption(self, images: Source, beam_size: int | None = ..., **options: Any) -> Caption: ...

    def caption(
        self,
        images: Source | list[Source],
        beam_size: int | None = None,
        batch_size: int = 64,
        details: bool = False,
        **options: Any,
    ) -> Caption | list[Caption]:
        """The best caption of a picture, or of each picture of a list.

        Args:
            images: a path, bytes, an open file or a Pillow picture; or a list of these.
            beam_size: hypotheses kept while searching; 1 is greedy; None for the model's own.
            batch_size: pictures computed together.
            details: whether to say all there is to say: ``layers``, ``past`` and ``centre``; not of hard
                attention that samples.
            options: other options of ``captioner.decoding.Decoding``, where not the model's own.

        Raises:
            UsageError: no such option.
            ImageError: a picture cannot be read. ``captions`` goes on without it instead.
        """
        several = isinstance(images, list)
        sources: list[Source] = images if isinstance(images, list) else [images]
        found = []
        if beam_size is not None:
            options["beam_size"] = beam_size
        decoding = self.decoding.with_options(options)
        for result in self.captions(sources, decoding, batch_size, details):
            if isinstance(result, ImageError):
                raise result
            found.append(result)
        return found if several else found[0]

    def captions(
        self,
        images: Sequence[Source],
        decoding: Decoding | None = None,
        batch_size: int = 64,
        details: bool = False,
    ) -> Iterator[Caption | ImageError]:
        """For each picture in order its caption, or what is wrong with it; a stream."""
        decoding = decoding or self.decoding
        # What is drawn anew would be said of other places than those that the search has looked at.
        details = details and not samples_locations(self.captioner.decoder)
        for batch in read_batches(images, batch_size, self.captioner.encoder.preprocessing):
            results: dict[int, Caption | ImageError] = dict(batch.failed)
            if batch.indices:
                annotations = self._annotate(batch.pixels)
                found = search(self.captioner.decoder, annotations, decoding)
                for row, (index, size, hypotheses) in enumerate(
                    zip(batch.indices, batch.sizes, found, strict=True)
                ):
                    geometry = Geometry(*size, annotations.grid)
                    if details:
                        hypotheses = self._explain(annotations.of(row), hypotheses)
                    best, *others = [
                        self._caption(images[index], h, geometry, decoding.samples)
                        for h in hypotheses
                    ]
                    results[index] = _with_alternatives(best, others)
            yield from (results[index] for index in sorted(results))

    def explain(self, image: Source, text: str) -> Caption:
        """The given sentence as if the model had written it: how likely, and where it looks.

        A word that the model does not know is shown as it is and read as ``<unk>``.

        Raises:
            ImageError: the picture cannot be read.
            UsageError: the sentence has no words.
        """
        batch = read_batch([image], range(1), self.captioner.encoder.preprocessing)
        for error in batch.failed.values():
            raise error
        words = Tokenizer()(text)
        annotations = self._annotate(batch.pixels)
        ids = self.vocabulary.encode(words)
        samples = self.decoding.samples
        hypothesis = force(self.captioner.decoder, annotations, ids, samples)
        geometry = Geometry(*batch.sizes[0], annotations.grid)
        return self._caption(image, hypothesis, geometry, samples, words)

    def sampler(self) -> "Predictor | None":
        """This model with hard attention that draws a place for every word, anew in each call.

        None where nothing can be drawn: no part of the decoder is ``Hard``. The encoder is shared,
        and this predictor stays as it is, whoever else is using it.
        """
        decoder = copy.deepcopy(self.captioner.decoder)
        hard = hard_attention(decoder)
        if not hard:
            return None
        for law in hard:
            law.test_time = "sample"
        whole = self.captioner
        drawing = Captioner(whole.encoder, whole.refiner, decoder, whole.vocabulary, whole.config)
        once = replace(self.decoding, samples=1)
        return Predictor(drawing, self.name, str(self.device), once, self.supervision)

    def _explain(
        self, annotations: Annotations, hypotheses: Sequence[Hypothesis]
    ) -> list[Hypothesis]:
        """What was found about one picture, with all that its decoder can say about it."""
        forced = [force(self.captioner.decoder, annotations, h.tokens) for h in hypotheses]
        return [
            replace(h, centre=told.centre, layers=told.layers, past=told.past)
            for h, told in zip(hypotheses, forced, strict=True)
        ]

    @torch.inference_mode()
    def _annotate(self, pixels: torch.Tensor) -> Annotations:
        return self.captioner.refiner(self.captioner.encode(pixels.to(self.device)))

    def _caption(
        self,
        image: Source,
        hypothesis: Hypothesis,
        geometry: Geometry,
        samples: int,
        words: Sequence[str] | None = None,
    ) -> Caption:
        if words is None:
            words = self.vocabulary.decode(hypothesis.tokens)

        def on_grid(weights: torch.Tensor) -> np.ndarray:
            return weights.unflatten(-1, geometry.grid).numpy().astype(np.float32)  # type: ignore[no-untyped-call]

        def plain(values: torch.Tensor | None) -> np.ndarray | None:
            return None if values is None else values.numpy().astype(np.float32)

        layers = hypothesis.layers
        return Caption(
            image=str(image) if isinstance(image, str | Path) else None,
            text=join(words),
            words=tuple(words),
            log_prob=hypothesis.log_prob,
            word_log_probs=tuple(hypothesis.log_probs),
            weights=on_grid(hypothesis.weights),
            geometry=geometry,
            model=self.name,
            mechanism=over_paths(self.captioner.decoder.mechanism, samples),
            layers=None if layers is None else on_grid(layers),
            past=plain(hypothesis.past),
            centre=plain(hypothesis.centre),
            window=self.captioner.decoder.window,
        )


def load(model: str | Path | None = None, device: str = "auto") -> Predictor:
    """The front door: ``load().caption("dog.jpg")``.

    From here on the process keeps the memory that it frees; see ``captioner.memory.keep_memory``.

    Args:
        model: a bundled name, a model folder, a Lightning ``.ckpt``, or a run folder; None for the
            bundled default.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``, ``mps``.

    Raises:
        UsageError: no such device.
        CheckpointError: no such model, or it cannot be loaded.
    """
    keep_memory()
    place = find_model(model)
    stored = checkpoint.load(place)
    name = str(model or DEFAULT_MODEL)
    return Predictor(stored.captioner, name, device, stored.decoding, stored.supervision)


def find_model(model: str | Path | None) -> Path:
    """The place that a bundled name or a path stands for."""
    return models().get(str(model or DEFAULT_MODEL), Path(model or DEFAULT_MODEL))


def _with_alternatives(best: Caption, others: Sequence[Caption]) -> Caption:
    return replace(best, alternatives=tuple(others))


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise UsageError(f"device {name!r} cannot be used: {reason}; try --device cpu") from error
    return device
