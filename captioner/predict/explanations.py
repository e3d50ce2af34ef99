"""Explanations of a caption's words: how much each word depends on each region of the image.

``attention`` and ``rollout`` read attention weights. The other methods explain the log-probability of a
word as a function of the annotation vectors that attention reads in the step of that word; the decoder's
memory of earlier steps is that of the whole image. If keys and values come from different encoders, the
results of both streams are added.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from captioner.errors import UsageError
from captioner.language.vocabulary import START
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.erasure import Erasure
from captioner.models.tensors import map_tensors

POINTS = 8  # of the Gauss-Legendre rule on the path of integrated gradients
ERASED = 64  # copies of an image in a batch; each has one region erased
# A chosen region has no gradient, so hard attention is explained by its expectation.
EXPECTATION = Sampling(mode="expectation")

Maps = Float[Tensor, "T L"]
Method = Callable[[Decoder, Annotations, Int[Tensor, " n"]], Maps]
"""Takes a decoder, the annotations of one image, and ``<start>`` with the T words of a caption."""


@dataclass(frozen=True)
class Step:
    """The step of a decoder that predicts a word of a caption."""

    decoder: Decoder
    annotations: Annotations  # of one image
    state: Any  # before the step
    before: Int[Tensor, " 1"]  # the previous word
    word: int

    def log_prob(self, *streams: Float[Tensor, "N L _"]) -> Float[Tensor, " N"]:
        """Return the log-probability of the word for N versions of the image."""
        images = _with_streams(self.annotations, *streams)
        return self.predict(self.decoder.init_state(images, 1, EXPECTATION).keys, len(images))

    def predict(self, keys: Any, number: int) -> Float[Tensor, " N"]:
        """Return the log-probability of the word, given the attention's keys of N images."""
        state = map_tensors(lambda part: part.expand(number, *part.shape[1:]), self.state)
        logits, _, _ = self.decoder.step(self.before.expand(number), replace(state, keys=keys))
        return logits.log_softmax(-1)[:, self.word]


def explain(
    decoder: Decoder, annotations: Annotations, caption: Sequence[int], method: str
) -> Maps:
    """Explain the words of a caption.

    Args:
        decoder: in eval mode.
        annotations: of one image, after the neck.
        caption: the ids of the T words, without start and end; one word or more.
        method: one of ``METHODS``.

    Returns:
        A map for each word, on the CPU. Those of ``integrated-gradients`` and ``occlusion`` are in
        nats, and negative where a region makes the word less probable. The others are not negative.

    Raises:
        UsageError: the decoder has no self-attention for rollout, or captum is not installed.
        ModelError: the decoder's state has no keys, which occlusion needs.
    """
    with torch.inference_mode(False), torch.no_grad():
        annotations = map_tensors(torch.clone, annotations)  # autograd refuses inference tensors
        tokens = torch.tensor([START, *caption], device=annotations.vectors.device)
        maps = METHODS[method](decoder, annotations, tokens)
        if annotations.mask is not None:
            maps = maps.masked_fill(~annotations.mask, 0)
        return maps.float().cpu()


def attention(decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, " n"]) -> Maps:
    """Return the attention weights."""
    return cast(Tensor, decoder(annotations, tokens[None, :-1], sampling=EXPECTATION).weights[0])


def rollout(decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, " n"]) -> Maps:
    """Return the attention rollout of a Transformer decoder; see ``attention_rollout``."""
    decoded = decoder(annotations, tokens[None, :-1], True, EXPECTATION)
    if decoded.layers is None or decoded.past_weights is None:
        raise UsageError(
            f"rollout needs a Transformer's layers, and {decoder.mechanism} has none: choose another "
            "method or model"
        )
    both = (decoded.past_weights, decoded.layers)
    return attention_rollout(*(part[0].permute(1, 2, 0, 3).unbind() for part in both))


def attention_rollout(
    past: Sequence[Float[Tensor, "s S S"]], cross: Sequence[Float[Tensor, "h S I"]]
) -> Float[Tensor, "S I"]:
    """Roll attention out over layers of self-attention and cross-attention.

    It follows the residual stream of the text, as in Abnar, Zuidema 2020 (arXiv 2005.00928), equation 1:
    R ← ½ (R + A R) for self-attention A, then R ← ½ (R + C) for cross-attention C, both averaged over
    heads. R is 0 before the first layer.
    """
    rolled = torch.zeros_like(cross[0][0])
    for text, image in zip(past, cross, strict=True):
        rolled = (rolled + text.mean(0) @ rolled) / 2
        rolled = (rolled + image.mean(0)) / 2
    return rolled


def grad_cam(step: Step) -> Float[Tensor, " L"]:
    """Return Grad-CAM (Selvaraju et al. 2017, arXiv 1610.02391, equations 1 and 2)::

        α_k = 1/L Σ_i ∂ log p / ∂a_ik      map_i = ReLU(Σ_k α_k a_ik)

    for the annotation vectors a_i as the feature map, with channels k.
    """
    with torch.enable_grad():
        streams = tuple(part.detach().requires_grad_() for part in _streams(step.annotations))
        gradients = torch.autograd.grad(step.log_prob(*streams).sum(), streams)
    pairs = zip(streams, gradients, strict=True)
    parts = [(gradient.mean(1, keepdim=True) * stream).sum(-1) for stream, gradient in pairs]
    return torch.stack(parts).sum(0)[0].relu()


def integrated_gradients(step: Step) -> Float[Tensor, " L"]:
    """Return integrated gradients (Sundararajan et al. 2017, arXiv 1703.01365), by captum.

    The path is a straight line from the mean image, all of whose vectors are the mean of the image's
    own. The sum over the regions is the word's log-probability minus that for the mean image.
    """
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise UsageError(
            "integrated-gradients needs captum: pip install 'captioner[captum]'"
        ) from error
    streams, baselines = _streams(step.annotations), _streams(step.annotations.flat())
    parts = IntegratedGradients(step.log_prob).attribute(streams, baselines, n_steps=POINTS)
    return torch.stack([part.sum(-1) for part in parts]).sum(0)[0]


def occlusion(decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, " n"]) -> Maps:
    """Return how far the log-probability falls when a region is erased (Zeiler, Fergus 2014)."""
    words, erasure = [*steps(decoder, annotations, tokens)], Erasure(decoder, annotations)
    regions = torch.eye(annotations.vectors.shape[1], dtype=torch.bool, device=tokens.device)
    after = []
    for part in torch.split(regions, ERASED):
        image = torch.zeros(len(part), dtype=torch.long, device=tokens.device)
        keys = erasure.erase(words[0].state, image, part).keys  # the same for all words
        after.append(torch.stack([step.predict(keys, len(part)) for step in words]))
    whole = torch.stack([step.predict(step.state.keys, 1) for step in words])
    return whole - torch.cat(after, 1)


def _each_word(method: Callable[[Step], Float[Tensor, " L"]]) -> Method:
    """Turn a method that explains a step into one that explains a caption."""

    def explained(decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, " n"]) -> Maps:
        return torch.stack([method(step) for step in steps(decoder, annotations, tokens)])

    return explained


def steps(decoder: Decoder, annotations: Annotations, tokens: Int[Tensor, " n"]) -> Iterator[Step]:
    """Yield the steps that predict the words of a caption."""
    state = decoder.init_state(annotations, 1, EXPECTATION)
    for before, word in zip(tokens[:-1], tokens[1:].tolist(), strict=True):
        yield Step(decoder, annotations, state, before[None], word)
        _, _, state = decoder.step(before[None], state)


def _streams(annotations: Annotations) -> tuple[Tensor, ...]:
    """Return the vectors (1, L, D), and the keys (1, L, D') of an encoder of two streams."""
    both = (annotations, annotations.keys)
    return tuple(part.vectors for part in both if part is not None)


def _with_streams(annotations: Annotations, vectors: Tensor, *keys: Tensor) -> Annotations:
    """Return N versions of one image, given its streams."""
    mask = annotations.mask
    return replace(
        annotations,
        vectors=vectors,
        mask=None if mask is None else mask.expand(len(vectors), -1),
        keys=None if annotations.keys is None else _with_streams(annotations.keys, *keys),
    )


METHODS: dict[str, Method] = {
    "attention": attention,
    "grad-cam": _each_word(grad_cam),
    "integrated-gradients": _each_word(integrated_gradients),
    "occlusion": occlusion,
    "rollout": rollout,
}
