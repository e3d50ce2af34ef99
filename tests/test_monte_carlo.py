"""The mean over sampled paths against every path, enumerated."""

import itertools
from functools import partial

import pytest
import torch

from captioner.decoding import Decoding, search
from captioner.errors import UsageError
from captioner.models import Annotations, Attention, LSTMDecoder, LuongDecoder
from captioner.models.attention import Additive, Hard, Soft
from captioner.models.monte_carlo import MonteCarlo
from captioner.text import END, START

L, D, V = 4, 5, 9
WORDS = [6, 8, END]


SAMPLING = partial(Hard, test_time="sample")


def toy(make=LSTMDecoder, distribution=SAMPLING, sharpness=1.0):
    """A small decoder that cares where it looks; the sharper, the surer where that is."""
    torch.manual_seed(1)
    attention = partial(Attention, score=partial(Additive, dim=3), distribution=distribution)
    made = make(V, D, attention, hidden=4, embedding=3, dropout=0.0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    made.attention.score.register_forward_hook(lambda _module, _given, found: sharpness * found)
    pictures = Annotations(2 * torch.randn(3, L, D, dtype=torch.double), (2, 2))
    return made.double().eval(), pictures


def enumerated(decoder, picture):
    """log p(s | a) and log p(y | s, a) of every path, by walking the tree of locations."""
    sampling = decoder.attention.distribution
    found = []
    for path in itertools.product(range(L), repeat=len(WORDS)):
        state, log_prob, said = decoder.start(picture), 0.0, 0.0
        for before, word, place in zip([START, *WORDS[:-1]], WORDS, path, strict=True):
            decoder.attention.distribution = Told(sampling, place)
            logits, _, state = decoder.step(torch.tensor([before]), state)
            log_prob += decoder.attention.distribution.log_prob
            said += logits[0].log_softmax(-1)[word].item()
        found.append((log_prob, said))
    decoder.attention.distribution = sampling
    return torch.tensor(found, dtype=torch.double).unbind(1)


class Told(torch.nn.Module):
    """Looks where it is told to."""

    def __init__(self, sampling, place):
        super().__init__()
        self.sampling, self.place = sampling, place

    def forward(self, scores, mask, asked):
        drawn = self.sampling(scores, mask, asked)
        self.log_prob = drawn.expected[0, 0, self.place].log().item()
        weights = torch.nn.functional.one_hot(torch.tensor([[self.place]]), L).to(scores)
        return type(drawn)(weights, drawn.log_prob, drawn.entropy)

    def coins(self, vectors):
        return self.sampling.coins(vectors)


@pytest.mark.parametrize("make", [LSTMDecoder, LuongDecoder])
def test_a_captions_probability_is_its_mean_over_all_paths(make):
    decoder, pictures = toy(make)
    picture = pictures.of(0)
    log_prob, said = enumerated(decoder, picture)
    assert log_prob.exp().sum().item() == pytest.approx(1)
    exact = (log_prob + said).logsumexp(0).exp()
    spread = ((log_prob + 2 * said).logsumexp(0).exp() - exact**2).sqrt()
    samples = 20_000
    torch.manual_seed(0)
    many, total = MonteCarlo(decoder, samples), 0.0
    state = many.start(picture)
    for before, word in zip([START, *WORDS[:-1]], WORDS, strict=True):
        logits, weights, state = many.step(torch.tensor([before]), state)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1).double(), atol=1e-5, rtol=0)
        total += logits[0].log_softmax(-1)[word]
    assert spread > 0.1 * exact  # where it looks matters
    assert abs(total.exp() - exact) < 3 * spread / samples**0.5


@pytest.mark.parametrize("make", [LSTMDecoder, LuongDecoder])
def test_paths_that_are_all_alike_are_the_argmax(make):
    """Beams, pictures and paths are not mixed up."""
    sure, pictures = toy(make, sharpness=1e4)
    expected = search(sure, pictures, Decoding(3))
    many = search(sure, pictures, Decoding(3, samples=4))
    assert [[h.tokens for h in found] for found in many] == [
        [h.tokens for h in found] for found in expected
    ]
    for one, other in zip(itertools.chain(*many), itertools.chain(*expected), strict=True):
        assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
        torch.testing.assert_close(one.weights, other.weights)
    assert len({tuple(found[0].tokens) for found in many}) > 1


@pytest.mark.parametrize("distribution", [Soft, Hard, partial(Hard, test_time="expectation")])
def test_a_decoder_that_samples_nothing_is_refused(distribution):
    decoder, pictures = toy(distribution=distribution)
    with pytest.raises(UsageError, match="test_time: sample"):
        search(decoder, pictures, Decoding(samples=2))
    search(decoder, pictures, Decoding(samples=1))


def test_it_says_what_it_is():
    decoder, _ = toy()
    assert MonteCarlo(decoder, 8).mechanism == f"{decoder.mechanism}, mean of 8 paths"
