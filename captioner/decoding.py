"""Beam search over any decoder's ``step``, batched over pictures; greedy search is a beam of one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from captioner.errors import ModelError, UsageError, unknown
from captioner.models.annotations import Annotations
from captioner.models.decoder import Decoder, of_pictures
from captioner.models.monte_carlo import MonteCarlo
from captioner.text import END, PAD, START, UNK
from captioner.trace import Hypothesis, Trace, follow

# Pictures that are done leave a search when they are so many of those in it: to copy the others' keys
# costs about an eighth of a step.
LEAVING = 1 / 8


@dataclass(frozen=True)
class Decoding:
    """How captions are searched for.

    Attributes:
        beam_size: hypotheses kept per picture; 1 is greedy search.
        max_length: most words in a caption.
        length_penalty: hypotheses are ranked by log-probability / length ** length_penalty, the end
            token counted; 1 is the mean per token, 0 prefers short captions.
        samples: for hard attention that samples: over how many paths of locations probabilities are
            averaged; see ``MonteCarlo``.
        no_repeat: no run of this many words is written twice in a caption (Paulus et al. 2018, arXiv
            1705.04304, §2.5); 0 allows it.
    """

    beam_size: int = 5
    max_length: int = 24
    length_penalty: float = 1.0
    samples: int = 1
    no_repeat: int = 0

    def __post_init__(self) -> None:
        counts = (self.beam_size, self.max_length, self.samples)
        if min(counts) < 1:
            raise UsageError(
                "beam size, greatest length and samples must be 1 or more, got {}, {} and {}".format(
                    *counts
                )
            )
        if self.no_repeat < 0:
            raise UsageError(
                f"no_repeat is a number of words, 0 for no such rule, got {self.no_repeat}"
            )

    def with_options(self, options: Mapping[str, Any]) -> "Decoding":
        """These options changed; UsageError for one that does not exist."""
        known = [field.name for field in fields(self)]
        for name in options:
            if name not in known:
                raise UsageError(unknown("decoding option", name, known))
        return replace(self, **options)


@torch.inference_mode()
def search(
    decoder: Decoder,
    annotations: Annotations,
    decoding: Decoding = Decoding(),
) -> list[list[Hypothesis]]:
    """The best captions of every picture, best first, at least one and at most ``beam_size``.

    Each step extends every hypothesis by every word and keeps the ``beam_size`` best of all that do
    not end. One that ends while among the ``beam_size`` best is finished; a picture is done when it
    has ``beam_size`` finished ones, or at ``max_length``, where all that are alive end. Words, state
    and weights move together, and the pictures of a batch do not see each other: those that are done
    leave it.

    ``<pad>``, ``<start>`` and ``<unk>`` are never written, and no caption is empty.

    Args:
        decoder: in eval mode.
        annotations: refined, as the decoder attends to them.
        decoding: how to search.

    Raises:
        ModelError: scores that are not numbers, or no words to write: there is no caption.
        UsageError: several samples of a decoder that draws none.
    """
    decoder = _of_many_paths(decoder, decoding.samples)
    pictures, beam = len(annotations), decoding.beam_size
    device = annotations.vectors.device
    state = decoder.start(annotations)
    # Of what nobody has said a word of yet, one row a picture.
    rows = torch.zeros(pictures, 1, dtype=torch.long, device=device)
    tokens = torch.full_like(rows, START)
    totals = torch.zeros(pictures, 1, device=device)
    written = tokens.new_zeros(pictures, 1, 0)
    trace = Trace()
    at_work = list(range(pictures))
    finished: list[list[tuple[float, int, int, float]]] = [[] for _ in range(pictures)]

    for length in range(1, decoding.max_length + 2):
        state = state.select(rows)
        logits, weights, state = decoder.step(tokens, state)
        log_probs = logits.float().log_softmax(-1)  # (B, K, V)
        log_probs[..., [PAD, START, UNK]] = -torch.inf
        if decoding.no_repeat:
            _ban_repeats(log_probs, written, decoding.no_repeat)
        if length == 1:
            log_probs[..., END] = -torch.inf
        elif length > decoding.max_length:
            log_probs[..., :END] = log_probs[..., END + 1 :] = -torch.inf
        vocabulary = log_probs.shape[-1]
        extended = (totals.unsqueeze(-1) + log_probs).flatten(1)  # (B, K·V)
        # At most one extension of each hypothesis ends it, so 2K hold K that go on.
        best, where = extended.topk(min(2 * beam, extended.shape[1]), dim=1)
        parents = where.div(vocabulary, rounding_mode="floor")
        words = where % vocabulary

        ends = (words == END) & best.isfinite()
        ranks = torch.arange(ends.shape[1], device=device)
        ending = (ends & (ranks < beam)).nonzero()
        where_from, log_prob = (told[*ending.unbind(1)].tolist() for told in (parents, best))
        for place, row, total in zip(ending[:, 0].tolist(), where_from, log_prob, strict=True):
            done = finished[at_work[place]]
            if len(done) < beam:
                done.append((total / length**decoding.length_penalty, length - 1, row, total))
        going = [place for place, b in enumerate(at_work) if len(finished[b]) < beam]
        if length > decoding.max_length or not going:
            break

        alive = best.masked_fill(words == END, -torch.inf)
        totals, kept = alive.topk(min(beam, alive.shape[1]), dim=1)
        if totals.shape[1] < beam:  # a vocabulary smaller than the beam
            missing = beam - totals.shape[1]
            totals = torch.nn.functional.pad(totals, (0, missing), value=-torch.inf)
            kept = torch.nn.functional.pad(kept, (0, missing))
        rows, tokens = parents.gather(1, kept), words.gather(1, kept)
        if decoding.no_repeat:
            kept_rows = rows.unsqueeze(-1).expand(-1, -1, written.shape[-1])
            written = torch.cat([written.gather(1, kept_rows), tokens.unsqueeze(-1)], -1)
        said = log_probs.flatten(1).gather(1, where.gather(1, kept))
        trace.append(at_work, rows, tokens, said, weights)

        if len(at_work) - len(going) >= LEAVING * len(at_work):
            still = torch.tensor(going, device=device)
            state, rows, tokens = (of_pictures(part, still) for part in (state, rows, tokens))
            totals, written = (of_pictures(part, still) for part in (totals, written))
            at_work = [at_work[place] for place in going]

    if not all(finished):
        raise ModelError(
            "no caption can be written: the decoder's scores must be numbers, got NaN or infinity, "
            "or its vocabulary has no words"
        )
    steps = trace.read()
    return [
        [
            follow(steps, b, length, row, total, score)
            for score, length, row, total in sorted(done, key=lambda f: -f[0])
        ]
        for b, done in enumerate(finished)
    ]


def _ban_repeats(
    log_probs: Float[Tensor, "B K V"], written: Int[Tensor, "B K t"], run: int
) -> None:
    """Makes impossible, in place, each word that would end a run of words written before."""
    if written.shape[-1] < run:
        return
    runs = written.unfold(-1, run, 1)  # (B, K, t - run + 1, run)
    begun = written[..., None, written.shape[-1] - run + 1 :]
    again = (runs[..., :-1] == begun).all(-1)
    # Where nothing is repeated, a word is banned that is never written anyhow.
    log_probs.scatter_(-1, runs[..., -1].where(again, PAD), -torch.inf)


def speakable(
    logits: Float[Tensor, "*rows V"], first: bool | Bool[Tensor, "*rows"]
) -> Float[Tensor, "*rows V"]:
    """Logits of what may be written: never ``<pad>``, ``<start>`` or ``<unk>``, nor an end at first.

    Args:
        logits: of the next word.
        first: whether it is the first of its caption.
    """
    banned = torch.zeros(logits.shape[-1], dtype=torch.bool, device=logits.device)
    banned[[PAD, START, UNK]] = True
    ending = torch.zeros_like(banned)
    ending[END] = True
    first = torch.as_tensor(first, device=logits.device).unsqueeze(-1)
    return logits.float().masked_fill(banned | (ending & first), -torch.inf)


@torch.no_grad()
def sample(
    decoder: Decoder, annotations: Annotations, count: int, max_length: int
) -> Int[Tensor, "B S T"]:
    """Captions drawn word by word from the model's own probabilities.

    Args:
        decoder: as it is to be sampled: without dropout in eval mode.
        annotations: refined, as the decoder attends to them.
        count: S, how many of each picture.
        max_length: most words in a caption; one that reaches it has no end.

    Returns:
        ``<start> words <end> <pad> …``, T at most ``max_length`` + 1.
    """
    pictures = len(annotations)
    state = decoder.start(annotations)
    device = annotations.vectors.device
    state = state.select(torch.zeros(pictures, count, dtype=torch.long, device=device))
    tokens = torch.full((pictures, count), START, device=device)
    written = [tokens]
    ended = torch.zeros_like(tokens, dtype=torch.bool)
    for length in range(max_length):
        logits, _, state = decoder.step(tokens, state)
        probabilities = speakable(logits, length == 0).softmax(-1)
        drawn = torch.multinomial(probabilities.flatten(0, 1), 1).view_as(tokens)
        tokens = drawn.masked_fill(ended, PAD)
        written.append(tokens)
        ended = ended | (tokens == END)
        if ended.all():
            break
    return torch.stack(written, -1)


@torch.inference_mode()
def force(
    decoder: Decoder, annotations: Annotations, tokens: Sequence[int], samples: int = 1
) -> Hypothesis:
    """The given words as a hypothesis about one picture: how probable, and where the model looks.

    It says all there is to say, but of a mean over paths; ``search`` does not, which tries many.

    Args:
        decoder: in eval mode.
        annotations: of one picture, refined.
        tokens: ids of the words, without start and end; at least one.
        samples: as of ``Decoding``.

    Raises:
        UsageError: no words; several samples of a decoder that draws none.
    """
    if not tokens:
        raise UsageError("a caption to explain needs at least one word")
    decoder = _of_many_paths(decoder, samples)
    inputs = torch.tensor([[START, *tokens]], device=annotations.vectors.device)
    decoded = decoder(annotations, inputs, "all")
    targets = torch.tensor([*tokens, END], device=inputs.device)
    log_probs = decoded.logits[0].float().log_softmax(-1).gather(1, targets.unsqueeze(1)).squeeze(1)
    total = float(log_probs.sum())
    assert decoded.weights is not None
    return Hypothesis(
        list(tokens),
        log_probs[:-1].tolist(),
        total,
        decoded.weights[0, :-1].float().cpu(),
        total / len(targets),
        centre=_words(decoded.centre),
        layers=_words(decoded.layers),
        # Nor the word that only the step that ends the caption has seen.
        past=None if decoded.past is None else _words(decoded.past[..., :-1]),
    )


def _of_many_paths(decoder: Decoder, samples: int) -> Decoder:
    return decoder if samples == 1 else MonteCarlo(decoder, samples)


def _words(steps: Float[Tensor, "1 S *more"] | None) -> Float[Tensor, " T *more"] | None:
    """What was said of every word, without the step that ends the caption."""
    return None if steps is None else steps[0, :-1].float().cpu()
