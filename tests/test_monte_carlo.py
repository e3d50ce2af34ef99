"""The mean over sampled paths against every path, enumerated."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from captioner.decoding import Decoding, force, search
from captioner.errors import UsageError
from captioner.models import (
    Annotations,
    Attention,
    LSTMDecoder,
    LuongDecoder,
    TransformerDecoder,
)
from captioner.models.attention import Additive, Hard, MultiHead, Soft
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
    assert spread > 0.1 * exact  # where it looks matters
    assert abs(probability(decoder, picture, samples) - exact) < 3 * spread / samples**0.5


def probability(decoder, picture, samples, seed=0):
    """p(y | a) as the mean over paths has it, with other dice for another seed."""
    many, total = MonteCarlo(decoder, samples), 0.0
    state = many.start(picture)
    many._generator.manual_seed(seed)
    for before, word in zip([START, *WORDS[:-1]], WORDS, strict=True):
        logits, weights, state = many.step(torch.tensor([before]), state)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1).double(), atol=1e-4, rtol=0)
        total += logits[0].log_softmax(-1)[word]
    return total.exp().item()


def test_paths_that_share_their_luck_miss_less_than_independent_ones():
    """Over many dice the mean of eight is right, and varies less than that of independent paths."""
    decoder, pictures = toy()
    dice, ratios = 60, []
    for number in range(len(pictures)):
        picture = pictures.of(number)
        log_prob, said = enumerated(decoder, picture)
        exact = (log_prob + said).logsumexp(0).exp().item()
        independent = ((log_prob + 2 * said).logsumexp(0).exp().item() - exact**2) / 8
        missed = np.array([probability(decoder, picture, 8, seed) for seed in range(dice)]) - exact
        assert abs(missed.mean()) < 3 * (independent / dice) ** 0.5
        ratios.append((missed**2).mean() / independent)
    assert np.mean(ratios) < 0.75


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


HEADS = partial(MultiHead, heads=2, distribution=SAMPLING)


@pytest.fixture(params=["lstm", "luong", "transformer"])
def drawing(request):
    """Decoders that draw places, and three pictures."""
    if request.param != "transformer":
        return toy({"lstm": LSTMDecoder, "luong": LuongDecoder}[request.param])
    torch.manual_seed(1)
    made = TransformerDecoder(V, D, attention=HEADS, dim=8, layers=2, heads=2, dropout=0.0)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return made.double().eval(), Annotations(2 * torch.randn(3, L, D, dtype=torch.double), (2, 2))


def test_what_is_found_depends_on_the_picture_alone(drawing):
    """Not on the call, nor on the pictures beside it."""
    decoder, pictures = drawing
    decoding = Decoding(3, samples=8)
    together = search(decoder, pictures, decoding)
    torch.manual_seed(5)
    assert [h.tokens for found in search(decoder, pictures, decoding) for h in found] == [
        h.tokens for found in together for h in found
    ]
    for number, found in enumerate(together):
        [alone] = search(decoder, pictures.of(number), decoding)
        for one, other in zip(alone, found, strict=True):
            assert one.tokens == other.tokens
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            torch.testing.assert_close(one.weights, other.weights, atol=1e-4, rtol=0)
    # Eight paths look at several places.
    assert any((h.weights > 0.01).sum(-1).max() > 1 for h in itertools.chain(*together))


def test_a_caption_that_was_found_is_explained_as_it_was_found(drawing):
    decoder, pictures = drawing
    for number, found in enumerate(search(decoder, pictures, Decoding(3, samples=8))):
        for hypothesis in found:
            told = force(decoder, pictures.of(number), hypothesis.tokens, samples=8)
            torch.testing.assert_close(told.weights, hypothesis.weights, atol=1e-4, rtol=0)
            assert told.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
            assert told.log_probs == pytest.approx(hypothesis.log_probs, abs=1e-4)


def test_the_decoder_stays_as_it_is(drawing):
    """It draws anew, and its tensors are not copied."""
    decoder, pictures = drawing
    many = MonteCarlo(decoder, 8)
    mine = dict(many.decoder.named_parameters())
    assert all(mine[name] is tensor for name, tensor in decoder.named_parameters())
    search(decoder, pictures, Decoding(3, samples=8))
    tokens = torch.tensor([[START, 6, 8, 5, 7]]).expand(3, -1)
    drawn = [decoder(pictures, tokens).weights for _ in range(8)]
    assert any(not torch.equal(drawn[0], other) for other in drawn[1:])


def test_heads_and_steps_have_luck_of_their_own():
    """Pairs of places, of two heads and of two steps, come as often as both chances' product."""
    many, pictures, law = drawer(samples=4000)
    chances = torch.rand(2 * 2, 1, L).softmax(-1)  # two pictures, two heads each
    chances[..., 1] = 0.0  # masked
    every_row = chances.repeat(1, 4000, 1)
    many.start(pictures)
    first, second = (law.dice(every_row).squeeze(-1) for _ in range(2))
    shares = chances.squeeze(1) / chances.sum(-1)
    for (one, p), (other, q) in [
        ((first[0], shares[0]), (first[1], shares[1])),
        ((first[2], shares[2]), (first[3], shares[3])),
        ((first[0], shares[0]), (second[0], shares[0])),
    ]:
        expected = p[:, None] * q
        pairs = torch.bincount(one * L + other, minlength=L * L).view(L, L) / 4000
        assert (pairs - expected).abs().max() < 5 * (expected.max() / 4000).sqrt()
        assert pairs[1].sum() == pairs[:, 1].sum() == 0


def test_rows_of_a_path_throw_the_same_dice_and_where_all_is_masked_there_are_none():
    many, pictures, law = drawer(samples=5)
    many.start(pictures)
    chances = torch.rand(2, 1, L).repeat(1, 5 * 3, 1)
    chances[1] = 0.0
    places = law.dice(chances).view(2, 5, 3)
    assert (places == places[..., :1]).all()
    assert (places < L).all()


@pytest.mark.parametrize("make", [LSTMDecoder, LuongDecoder])
def test_pictures_that_are_done_leave_the_search_of_their_paths(make, monkeypatch):
    decoder, pictures = toy(make)
    sizes = []
    step = make.step
    monkeypatch.setattr(make, "step", lambda *of: sizes.append(len(of[1])) or step(*of))
    for _ in range(12):  # the readier it is to end, the sooner
        sizes.clear()
        together = search(decoder, pictures, Decoding(3, samples=8))
        if sizes[-1] < len(pictures):
            break
        with torch.no_grad():
            decoder.output.bias[END] += 0.5
    assert sizes[0] == len(pictures) > sizes[-1]
    for b, found in enumerate(together):
        [alone] = search(decoder, pictures.of(b), Decoding(3, samples=8))
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        for h, other in zip(found, alone, strict=True):
            torch.testing.assert_close(h.weights, other.weights, rtol=0, atol=1e-6)


def drawer(samples):
    """A mean over paths, two pictures for it, and the law whose places it draws."""
    decoder, pictures = toy()
    many = MonteCarlo(decoder, samples)
    return many, pictures.with_vectors(pictures.vectors[:2]), many.decoder.attention.distribution


def test_it_says_what_it_is():
    decoder, _ = toy()
    assert MonteCarlo(decoder, 8).mechanism == f"{decoder.mechanism}, mean of 8 paths"
