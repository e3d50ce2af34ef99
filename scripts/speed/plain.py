"""Captioners as tutorials write them: a yardstick.

The same parameters as the package's decoders, and the same numbers; but every caption has its own copy
of its picture's annotation vectors, the keys and the vocabulary are projected inside the loop over
time, and a beam search takes one picture after the other. As the better tutorials do, captions are
sorted by length and the batch shrinks as they end.
"""

import math
from typing import Any, Protocol
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from captioner.decoding import Decoding
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.linear import Linear
from captioner.models.lstm import LSTMDecoder
from captioner.models.luong import LuongDecoder
from captioner.models.transformer import TransformerDecoder
from captioner.text import END, PAD, START, UNK

# Tutorials' layers are torch's own.
_own_layers = mock.patch.object(Linear, "forward", nn.Linear.forward)


class Plain(Protocol):
    """One caption a row: annotation vectors are (N, L, D)."""

    def start(self, vectors: Tensor) -> Any:
        """The state before the first word: tensors of N rows."""
        ...

    def step(self, tokens: Tensor, vectors: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """Logits (N, V), weights (N, L) and the new state."""
        ...


class PlainLSTM:
    """Attend, then update; additive score."""

    def __init__(self, decoder: LSTMDecoder) -> None:
        self.decoder: Any = decoder

    def start(self, vectors: Tensor) -> Any:
        """h and c from the mean annotation vector."""
        mean = vectors.mean(1)
        return self.decoder.start_hidden(mean), self.decoder.start_cell(mean)

    def step(self, tokens: Tensor, vectors: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """One word."""
        decoder, (hidden, cell) = self.decoder, state
        score = decoder.attention.score
        keys = score.key(vectors)  # again for every word
        weights = (
            score.energy(torch.tanh(score.query(hidden).unsqueeze(1) + keys))
            .squeeze(-1)
            .softmax(-1)
        )
        context = (weights.unsqueeze(-1) * vectors).sum(1)
        if decoder.gate is not None:
            context = decoder.gate(hidden) * context
        embedded = decoder.embedding(tokens)
        hidden, cell = decoder.lstm(torch.cat([embedded, context], -1), (hidden, cell))
        deep = embedded + decoder.output_hidden(hidden) + decoder.output_context(context)
        return decoder.output(torch.tanh(deep)), weights, (hidden, cell)


class PlainLuong:
    """Update, then attend; general score."""

    def __init__(self, decoder: LuongDecoder) -> None:
        self.decoder: Any = decoder

    def start(self, vectors: Tensor) -> Any:
        """h and c from the mean annotation vector, h̃ of zeros."""
        mean = vectors.mean(1)
        fed = mean.new_zeros(len(mean), self.decoder.embedding.embedding_dim)
        return self.decoder.start_hidden(mean), self.decoder.start_cell(mean), fed

    def step(self, tokens: Tensor, vectors: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """One word."""
        decoder, (hidden, cell, fed) = self.decoder, state
        inputs = decoder.embedding(tokens)
        if decoder.input_feeding:
            inputs = torch.cat([inputs, fed], -1)
        _, (h, c) = decoder.lstm(inputs.unsqueeze(1), (hidden[None], cell[None]))
        hidden, cell = h[0], c[0]
        keys = decoder.attention.score.key(vectors)  # again for every word
        weights = (keys @ hidden.unsqueeze(-1)).squeeze(-1).softmax(-1)
        context = (weights.unsqueeze(-1) * vectors).sum(1)
        fed = torch.tanh(decoder.attentional(torch.cat([context, hidden], -1)))
        return decoder.output(fed), weights, (hidden, cell, fed)


class PlainTransformer:
    """The words so far run through all layers again for every word, as where nothing is kept."""

    def __init__(self, decoder: TransformerDecoder) -> None:
        self.decoder: Any = decoder

    def start(self, vectors: Tensor) -> Any:
        """No words."""
        return (torch.empty(len(vectors), 0, dtype=torch.long, device=vectors.device),)

    def step(self, tokens: Tensor, vectors: Tensor, state: Any) -> tuple[Tensor, Tensor, Any]:
        """One word."""
        words = torch.cat([state[0], tokens.unsqueeze(1)], 1)
        logits, weights = self.all(words, vectors)
        return logits[:, -1], weights[:, -1], (words,)

    def all(self, tokens: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (N, T, V) and the last layer's weights (N, T, L) of whole captions."""
        decoder = self.decoder
        length, dim = tokens.shape[1], decoder.embedding.embedding_dim
        memory = decoder.memory(vectors)
        place = torch.arange(length, device=tokens.device, dtype=vectors.dtype).unsqueeze(1)
        rate = torch.exp(torch.arange(0, dim, 2, device=tokens.device) * (-math.log(10000.0) / dim))
        position = torch.stack([torch.sin(place * rate), torch.cos(place * rate)], -1).flatten(1)
        words = math.sqrt(dim) * decoder.embedding(tokens) + position
        future = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        for layer in decoder.layers:
            normed = layer.norms[0](words)
            own, other = layer.self_attention, layer.attention
            key, value = own.key_value(normed).chunk(2, -1)
            found, _ = heads(own.query(normed), key, value, own.heads, future)
            words = words + own.output(found)
            query = other.query(layer.norms[1](words))
            found, weights = heads(query, other.key(memory), other.value(memory), other.heads)
            words = words + other.output(found)
            words = words + layer.feed_forward(layer.norms[2](words))
        return decoder.output(decoder.norm(words)), weights.mean(1)


def heads(
    query: Tensor, key: Tensor, value: Tensor, count: int, blocked: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attention of several heads, by hand: what was found, and the weights (N, h, T, L)."""
    query, key, value = (
        torch.unflatten(x, -1, (count, -1)).transpose(1, 2) for x in (query, key, value)
    )
    scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
    if blocked is not None:
        scores = scores.masked_fill(blocked, -torch.inf)
    weights = scores.softmax(-1)
    return (weights @ value).transpose(1, 2).flatten(2), weights


PLAIN: dict[type[nn.Module], Any] = {
    LSTMDecoder: PlainLSTM,
    LuongDecoder: PlainLuong,
    TransformerDecoder: PlainTransformer,
}


def plain(decoder: nn.Module) -> Plain:
    """The tutorial's version of a decoder, with its parameters."""
    return PLAIN[type(decoder)](decoder)


@_own_layers
def forced(captioner: Captioner, vectors: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Teacher forcing: (logits, weights) of all words of all captions, the captions by length.

    Args:
        captioner: refiner and decoder.
        vectors: (B, L, D), of the encoder.
        tokens: (B, R, T), with start, end and padding.
    """
    decoder = plain(captioner.decoder)
    copies = vectors.repeat_interleave(tokens.shape[1], 0)  # one for each caption
    rows = tokens.flatten(0, 1)
    lengths, order = (rows[:, 1:] != PAD).sum(1).sort(descending=True, stable=True)
    rows, copies = rows[order], refined(captioner, copies[order])
    if isinstance(decoder, PlainTransformer):
        return decoder.all(rows[:, : int(lengths[0])], copies)
    state = decoder.start(copies)
    steps, looks = [], []
    for t in range(int(lengths[0])):
        alive = int((lengths > t).sum())
        state = tuple(part[:alive] for part in state)
        logits, weights, state = decoder.step(rows[:alive, t], copies[:alive], state)
        steps.append(F.pad(logits, (0, 0, 0, len(rows) - alive)))
        looks.append(F.pad(weights, (0, 0, 0, len(rows) - alive)))
    return torch.stack(steps, 1), torch.stack(looks, 1)


def loss(captioner: Captioner, vectors: Tensor, tokens: Tensor, stochastic: float) -> Tensor:
    """Cross-entropy with label smoothing 0.1, and the doubly stochastic term."""
    logits, weights = forced(captioner, vectors, tokens)
    rows = tokens.flatten(0, 1)
    _, order = (rows[:, 1:] != PAD).sum(1).sort(descending=True, stable=True)
    targets = rows[order][:, 1 : 1 + logits.shape[1]]
    value = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1
    )
    if stochastic:
        there = (targets != PAD).unsqueeze(-1)
        value = value + stochastic * ((1 - (weights * there).sum(1)) ** 2).mean()
    return value


def refined(captioner: Captioner, vectors: Tensor) -> Tensor:
    """What the decoder attends to."""
    return captioner.refiner(Annotations(vectors, (1, vectors.shape[1]))).vectors


@_own_layers
@torch.inference_mode()
def beam(captioner: Captioner, vectors: Tensor, decoding: Decoding) -> list[list[int]]:
    """The best caption of every picture, one picture after the other."""
    decoder = plain(captioner.decoder)
    return [_beam(decoder, refined(captioner, one.unsqueeze(0)), decoding) for one in vectors]


def _beam(decoder: Plain, vectors: Tensor, decoding: Decoding) -> list[int]:
    beam, alive = decoding.beam_size, [(0.0, [START])]
    state = decoder.start(vectors)
    done: list[tuple[float, list[int]]] = []
    for length in range(1, decoding.max_length + 2):
        words = torch.tensor([written[-1] for _, written in alive], device=vectors.device)
        logits, _, state = decoder.step(words, vectors.expand(len(alive), -1, -1), state)
        log_probs = logits.log_softmax(-1)
        log_probs[:, [PAD, START, UNK]] = -torch.inf
        if length == 1:
            log_probs[:, END] = -torch.inf
        if length > decoding.max_length:
            log_probs[:, :END] = log_probs[:, END + 1 :] = -torch.inf
        totals = log_probs + torch.tensor([[total] for total, _ in alive], device=vectors.device)
        best, where = totals.flatten().topk(2 * beam)
        extended = []
        for rank, (total, place) in enumerate(zip(best.tolist(), where.tolist(), strict=True)):
            row, word = divmod(place, totals.shape[1])
            if word != END:
                extended.append((total, [*alive[row][1], word], row))
            elif rank < beam and math.isfinite(total) and len(done) < beam:
                done.append((total / length**decoding.length_penalty, alive[row][1][1:]))
        if length > decoding.max_length or len(done) == beam:
            break
        extended = extended[:beam]
        alive = [(total, written) for total, written, _ in extended]
        state = tuple(part[[row for _, _, row in extended]] for part in state)
    return max(done, key=lambda pair: pair[0])[1]
