"""Replaced attention weights: against plain loops, and for every decoder."""

import statistics

import pytest
import torch

from captioner.evaluation.interventions import (
    Intervened,
    even,
    log_probs,
    record,
)
from captioner.evaluation.randomisation import rank_correlation
from captioner.language.vocabulary import END, PAD, START
from captioner.models import Annotations
from captioner.search.beam import search
from captioner.search.options import Decoding
from random_decoders import random_decoder

L, D, V = 6, 6, 9
TOKENS = torch.tensor([[START, 5, 7, END, PAD], [START, 4, 8, 6, END], [START, 6, END, PAD, PAD]])
LENGTHS = [3, 4, 2]
SOFT = {"class_path": "Attention"}
HARD = {"class_path": "Attention", "init_args": {"distribution": {"class_path": "Hard"}}}
HEADS = {"class_path": "MultiHead", "init_args": {"heads": 2, "dim": 8}}
LSTM = {"hidden": 6, "embedding": 4}
TRANSFORMER = {"dim": 6, "layers": 2, "heads": 2, "feed_forward": 5}
DECODERS = {
    "LSTM": ("LSTMDecoder", LSTM | {"attention": SOFT}),
    "LSTM intra": ("LSTMDecoder", LSTM | {"attention": SOFT, "intra": True}),
    "hard": ("LSTMDecoder", LSTM | {"attention": HARD}),
    "Luong": ("LuongDecoder", LSTM | {"attention": SOFT}),
    "Luong sentinel": ("LuongDecoder", LSTM | {"attention": SOFT, "sentinel": True}),
    "Luong heads": ("LuongDecoder", LSTM | {"attention": HEADS, "input_feeding": False}),
    "top-down": ("TopDownDecoder", LSTM | {"attention": SOFT}),
    "Transformer": ("TransformerDecoder", TRANSFORMER | {"attention": HEADS}),
}


def make(name):
    return random_decoder(*DECODERS[name], V, D)


def photos(mask=True):
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(3, L, D, generator=generator, dtype=torch.double)
    masked = torch.ones(3, L, dtype=torch.bool)
    masked[1, 2:4] = False
    return Annotations(vectors, (2, 3), masked if mask else None)


def valid(values):
    """The values of the steps before the end of each caption."""
    return torch.cat([row[:length] for row, length in zip(values, LENGTHS, strict=True)])


@pytest.mark.parametrize("name", DECODERS)
def test_its_own_weights_change_nothing(name):
    decoder, annotations = make(name), photos()
    plan = record(decoder, annotations, TOKENS)
    same = Intervened(decoder, plan)
    before = log_probs(decoder, annotations, TOKENS)
    torch.testing.assert_close(
        valid(log_probs(same, annotations, TOKENS)), valid(before), rtol=0, atol=1e-10
    )
    assert not any(part._forward_hooks for part in decoder.modules())


def test_the_search_with_its_own_weights_finds_the_same_captions():
    """A beam of one follows the plan of its own caption; finished images leave the batch."""
    decoder, annotations = make("LSTM"), photos()
    decoder.output.bias.data[END] += 3
    decoding = Decoding(beam_size=1, max_length=7)
    found = [beam[0] for beam in search(decoder, annotations, decoding)]
    lengths = [len(caption.tokens) + 1 for caption in found]
    assert len(set(lengths)) > 1
    rows = [[START, *c.tokens, END, *[PAD] * (max(lengths) - len(c.tokens))] for c in found]
    plan = record(decoder, annotations, torch.tensor(rows))
    again = [beam[0] for beam in search(Intervened(decoder, plan), annotations, decoding)]
    assert [caption.tokens for caption in again] == [caption.tokens for caption in found]
    other = Intervened(decoder, even(plan, annotations.mask))
    changed = [beam[0] for beam in search(other, annotations, decoding)]
    assert [caption.tokens for caption in changed] != [caption.tokens for caption in found]


def test_even_weights_give_the_mean_context():
    """A plain loop with nn.LSTMCell, whose context is the mean of the unmasked annotations."""
    decoder, annotations = make("LSTM"), photos()
    plan = even(record(decoder, annotations, TOKENS), annotations.mask)
    found = log_probs(Intervened(decoder, plan), annotations, TOKENS)
    for i, length in enumerate(LENGTHS):
        regions = [
            vector
            for vector, there in zip(annotations.vectors[i], annotations.mask[i], strict=True)
            if there
        ]
        mean = sum(regions) / len(regions)
        h, c = decoder.start_hidden(mean)[None], decoder.start_cell(mean)[None]
        for t in range(length):
            word = decoder.embedding.weight[TOKENS[i, t]][None]
            context = decoder.gate(h) * mean
            h, c = decoder.lstm(torch.cat([word, context], 1), (h, c))
            deep = torch.tanh(word + decoder.output_hidden(h) + decoder.output_context(context))
            expected = decoder.output(deep).log_softmax(-1)[0, TOKENS[i, t + 1]]
            torch.testing.assert_close(found[i, t], expected, rtol=0, atol=1e-6)


def spearman(x, y):
    """The correlation of ranks, each the number of smaller values and half of the equal ones."""
    ranks = [[sum((b < a) + (b == a) / 2 for b in values) for a in values] for values in (x, y)]
    return statistics.correlation(*ranks)


def test_rank_correlation_is_that_of_a_plain_loop():
    generator = torch.Generator().manual_seed(0)
    one = torch.randint(4, (5, 9), generator=generator).double()  # with ties
    other = torch.rand(5, 9, generator=generator).double()
    one[4] = 2.0  # of equal weights, there is none
    expected = [spearman(x, y) for x, y in zip(one[:4].tolist(), other.tolist(), strict=False)]
    found = rank_correlation(one, other).tolist()
    assert found == pytest.approx([*expected, 0.0])
