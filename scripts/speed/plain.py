"""LSTM captioners as tutorials write them, for comparison.

They use the parameters of the package's decoders and compute the same numbers, but every caption has a
copy of its image's annotation vectors, keys and vocabulary are projected inside the loop over time, and
beam search takes one image after the other. As in the better tutorials, captions are sorted by length
and the batch shrinks as they end. Call these functions with the plain modules
(``speed.measure.replacements(model, enabled=False)``).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.lstm import LSTMDecoder
from captioner.search.options import Decoding

State = tuple[Tensor, ...]
# (decoder, tokens (N,), vectors (N, L, D), state) → logits (N, V), weights (N, L), state
Step = Callable[[Any, Tensor, Tensor, State], tuple[Tensor, Tensor, State]]


def lstm_step(
    decoder: Any, tokens: Tensor, vectors: Tensor, state: State
) -> tuple[Tensor, Tensor, State]:
    """Attend, then update; additive score."""
    hidden, cell = state
    score = decoder.attention.score
    mixed = torch.tanh(score.query(hidden).unsqueeze(1) + score.key(vectors))
    weights = score.energy(mixed).squeeze(-1).softmax(-1)
    context = (weights.unsqueeze(-1) * vectors).sum(1)
    if decoder.gate is not None:
        context = decoder.gate(hidden) * context
    embedded = decoder.embedding(tokens)
    hidden, cell = decoder.lstm(torch.cat([embedded, context], -1), (hidden, cell))
    deep = embedded + decoder.output_hidden(hidden) + decoder.output_context(context)
    return decoder.output(torch.tanh(deep)), weights, (hidden, cell)


def luong_step(
    decoder: Any, tokens: Tensor, vectors: Tensor, state: State
) -> tuple[Tensor, Tensor, State]:
    """Update, then attend; general score."""
    hidden, cell, attentional = state
    inputs = decoder.embedding(tokens)
    if decoder.input_feeding:
        inputs = torch.cat([inputs, attentional], -1)
    _, (h, c) = decoder.lstm(inputs.unsqueeze(1), (hidden[None], cell[None]))
    hidden, cell = h[0], c[0]
    scores = decoder.attention.score.key(vectors) @ hidden.unsqueeze(-1)
    weights = scores.squeeze(-1).softmax(-1)
    context = (weights.unsqueeze(-1) * vectors).sum(1)
    attentional = torch.tanh(decoder.attentional(torch.cat([context, hidden], -1)))
    return decoder.output(attentional), weights, (hidden, cell, attentional)


def start(decoder: Any, vectors: Tensor) -> tuple[Step, State]:
    """Return the step function of a decoder and the state before the first word."""
    mean = vectors.mean(1)
    if isinstance(decoder, LSTMDecoder):
        return lstm_step, (decoder.start_hidden(mean), decoder.start_cell(mean))
    none = mean.new_zeros(len(mean), decoder.embedding.embedding_dim)
    return luong_step, (decoder.start_hidden(mean), decoder.start_cell(mean), none)


def necked(captioner: Captioner, vectors: Tensor) -> Tensor:
    """Apply the neck."""
    return captioner.neck(Annotations(vectors, (1, vectors.shape[1]))).vectors


def loss(captioner: Captioner, vectors: Tensor, tokens: Tensor, stochastic: float) -> Tensor:
    """Return cross-entropy with label smoothing 0.1 plus ``stochastic`` × the doubly stochastic term.

    Of vectors (B, L, D) and tokens (B, R, T) with start, end and padding.
    """
    decoder: Any = captioner.decoder
    copies = vectors.repeat_interleave(tokens.shape[1], 0)  # one for each caption
    rows = tokens.flatten(0, 1)
    lengths, order = (rows[:, 1:] != PAD).sum(1).sort(descending=True, stable=True)
    rows, copies, longest = rows[order], necked(captioner, copies[order]), int(lengths[0])
    step, state = start(decoder, copies)
    outputs = []
    for t in range(longest):
        alive = int((lengths > t).sum())
        state = tuple(part[:alive] for part in state)
        *output, state = step(decoder, rows[:alive, t], copies[:alive], state)
        outputs.append([F.pad(part, (0, 0, 0, len(rows) - alive)) for part in output])
    logits, weights = (torch.stack(parts, 1) for parts in zip(*outputs, strict=True))
    targets = rows[:, 1 : 1 + longest]
    value = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    if stochastic:
        valid = (targets != PAD).unsqueeze(-1)
        value = value + stochastic * ((1 - (weights * valid).sum(1)) ** 2).mean()
    return value


@torch.inference_mode()
def beam(captioner: Captioner, vectors: Tensor, decoding: Decoding) -> list[list[int]]:
    """Return the best caption of every image, searched one image after the other."""
    decoder: Any = captioner.decoder
    return [_beam(decoder, necked(captioner, one.unsqueeze(0)), decoding) for one in vectors]


def _beam(decoder: Any, vectors: Tensor, decoding: Decoding) -> list[int]:
    size, alive = decoding.beam_size, [(0.0, [START])]
    step, state = start(decoder, vectors)
    done: list[tuple[float, list[int]]] = []
    for length in range(1, decoding.max_length + 2):
        words = torch.tensor([written[-1] for _, written in alive], device=vectors.device)
        logits, _, state = step(decoder, words, vectors.expand(len(alive), -1, -1), state)
        log_probs = logits.log_softmax(-1)
        log_probs[:, [PAD, START, UNK]] = -torch.inf
        if length == 1:
            log_probs[:, END] = -torch.inf
        if length > decoding.max_length:
            log_probs[:, :END] = log_probs[:, END + 1 :] = -torch.inf
        totals = log_probs + torch.tensor([[total] for total, _ in alive], device=vectors.device)
        best, where = totals.flatten().topk(2 * size)
        extended = []
        for rank, (total, place) in enumerate(zip(best.tolist(), where.tolist(), strict=True)):
            row, word = divmod(place, totals.shape[1])
            if word != END:
                extended.append((total, [*alive[row][1], word], row))
            elif rank < size and math.isfinite(total) and len(done) < size:
                done.append((total / length**decoding.length_penalty, alive[row][1][1:]))
        if length > decoding.max_length or len(done) == size:
            break
        extended = extended[:size]
        alive = [(total, written) for total, written, _ in extended]
        state = tuple(part[[row for _, _, row in extended]] for part in state)
    return max(done, key=lambda pair: pair[0])[1]
