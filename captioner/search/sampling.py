"""Several captions of an image, sampled word by word: temperature, top-k and nucleus sampling."""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder
from captioner.models.distributions import Sampling
from captioner.models.monte_carlo import StratifiedSampler
from captioner.search.beam import score_captions
from captioner.search.hypotheses import Hypothesis, average_paths, in_parts
from captioner.search.options import WordSampling


@torch.inference_mode()
def sample_captions(
    decoder: Decoder, annotations: Annotations, options: WordSampling, samples: int = 1
) -> list[list[Hypothesis]]:
    """Sample captions of every image, most probable per word first.

    All images use the same random numbers, so that the captions of an image depend on the image, the
    options and the seed, not on the other images. The log-probabilities are those of the model,
    without temperature and truncation.

    Args:
        decoder: in eval mode.
        annotations: after the neck.
        options: how words are chosen.
        samples: number of paths that are averaged, as in ``Decoding``.
    """
    results = []
    for row, captions in enumerate(sample_words(decoder, annotations, options, samples)):
        scored = score_captions(decoder, annotations.of(row), captions, samples)
        results.append(sorted(scored, key=lambda h: -h.score))
    return results


@torch.inference_mode()
def sample_words(
    decoder: Decoder, annotations: Annotations, options: WordSampling, samples: int = 1
) -> list[list[list[int]]]:
    """Sample captions as ``sample_captions`` does; return the ids of their words, unordered."""
    generator = torch.Generator().manual_seed(options.seed)  # on the CPU: equal on every device
    uniform = torch.rand(options.max_length, options.num_captions, generator=generator)

    def choose(logits: Float[Tensor, "B S V"], step: int) -> Int[Tensor, "B S"]:
        probs = truncate((logits / options.temperature).softmax(-1), options.top_k, options.top_p)
        cumulated = probs.double().cumsum(-1)
        drawn = uniform[step].to(cumulated).unsqueeze(-1) * cumulated[..., -1:]
        return (cumulated <= drawn).sum(-1).clamp(max=probs.shape[-1] - 1)

    decoder = average_paths(decoder, samples)
    count = options.num_captions
    results = []
    for part in in_parts(annotations, count * samples):
        # The locations of hard attention are equal in every call.
        locations = Sampling(sampler=StratifiedSampler(count))
        tokens = sample(
            decoder, part, count, options.max_length, locations, options.min_length, choose
        )
        for captions in tokens[..., 1:].tolist():
            results.append([ids[: ids.index(END)] if END in ids else ids for ids in captions])
    return results


@torch.no_grad()
def sample(
    decoder: Decoder,
    annotations: Annotations,
    count: int,
    max_length: int,
    sampling: Sampling | None = None,
    min_length: int = 1,
    choose: Callable[[Float[Tensor, "B S V"], int], Int[Tensor, "B S"]] | None = None,
) -> Int[Tensor, "B S T"]:
    """Sample captions word by word, by default from the decoder's distribution.

    Args:
        decoder, annotations, sampling: as for ``beam.search``; in training mode, the decoder applies
            dropout.
        count: S, the number of captions per image.
        max_length: maximal number of words; a caption of this length has no end token.
        min_length: least number of words.
        choose: returns the next words, given their logits and the number of words before them.

    Returns:
        ``<start> words <end> <pad> …``, T at most ``max_length`` + 1.
    """
    state = decoder.init_state(annotations, count, sampling)
    tokens = torch.full((len(annotations), count), START, device=annotations.vectors.device)
    written = [tokens]
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    for length in range(max_length):
        logits, _, state = decoder.step(tokens, state)
        logits = mask_special_tokens(logits, length < min_length)
        if choose is None:
            probs = logits.softmax(-1).flatten(0, 1)
            drawn = torch.multinomial(probs, 1).view_as(tokens)
        else:
            drawn = choose(logits, length)
        tokens = drawn.masked_fill(ended, PAD)
        written.append(tokens)
        ended = ended | (tokens == END)
        if ended.all():
            break
    return torch.stack(written, -1)


def mask_special_tokens(
    logits: Float[Tensor, "*rows V"], first: bool | Bool[Tensor, "*rows"]
) -> Float[Tensor, "*rows V"]:
    """Ban ``<pad>``, ``<start>`` and ``<unk>`` by logits of -inf; where ``first``, ``<end>`` too."""
    ids = torch.arange(logits.shape[-1], device=logits.device)
    first = torch.as_tensor(first, device=logits.device).unsqueeze(-1)
    banned = (ids == PAD) | (ids == START) | (ids == UNK) | ((ids == END) & first)
    return logits.float().masked_fill(banned, -torch.inf)


def truncate(probs: Float[Tensor, "*rows V"], top_k: int, top_p: float) -> Float[Tensor, "*rows V"]:
    """Set the probabilities of all words but the top k, and then the nucleus of mass p, to 0.

    The most probable word always stays. The result is not normalised.
    """
    ranked, order = probs.sort(dim=-1, descending=True, stable=True)
    keep = torch.ones_like(ranked, dtype=torch.bool)
    if top_k:
        keep[..., top_k:] = False
    if top_p < 1:
        kept = ranked.masked_fill(~keep, 0)
        # A word belongs to the nucleus if those before it have not reached p of the remaining mass.
        before = kept.cumsum(-1) - kept
        keep &= before < top_p * kept.sum(-1, keepdim=True)
    keep[..., 0] = True
    return probs * torch.zeros_like(keep).scatter(-1, order, keep)
