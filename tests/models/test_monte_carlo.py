"""The mean over sampled paths against every path, enumerated."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

from captioner.errors import UsageError
from captioner.language.vocabulary import END, START
from captioner.models import (
    Additive,
    Annotations,
    Attention,
    Hard,
    LSTMDecoder,
    LuongDecoder,
    MultiHead,
    Soft,
    TransformerDecoder,
)
from captioner.models.distributions import Sampling
from captioner.models.monte_carlo import MonteCarlo, StratifiedSampler
from captioner.search.beam import score_captions, search
from captioner.search.options import Decoding

L, D, V = 4, 5, 9
WORDS = [6, 8, END]
INPUTS = [START, *WORDS[:-1]]
SAMPLE = partial(Hard, test_time="sample")


def toy(make=LSTMDecoder, distribution=SAMPLE):
    """A small decoder whose words depend on locations, and three images."""
    torch.manual_seed(1)
    attention = partial(Attention, score=partial(Additive, dim=3), distribution=distribution)
    decoder = make(V, D, attention=attention, hidden=4, embedding=3, dropout=0.0)
    return randomise(decoder)


def randomise(decoder):
    """Return the decoder in eval mode with random parameters, and three images."""
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    images = Annotations(2 * torch.randn(3, L, D, dtype=torch.double), (2, 2))
    return decoder.double().eval(), images


def enumerated(decoder, image):
    """log p(s | a) and log p(y | s, a) of every path s of locations."""
    results = []
    for path in itertools.product(range(L), repeat=len(WORDS)):
        probs, locations = [], iter(path)

        def sampler(p, probs=probs, locations=locations):
            location = next(locations)
            probs.append(p[0, 0, location].item())
            return torch.full((1, 1, 1), location)

        state, log_prob = decoder.init_state(image, sampling=Sampling(sampler=sampler)), 0.0
        for before, word in zip(INPUTS, WORDS, strict=True):
            logits, _, state = decoder.step(torch.tensor([before]), state)
            log_prob += logits[0].log_softmax(-1)[word].item()
        results.append((np.log(probs).sum(), log_prob))
    return torch.tensor(results, dtype=torch.double).unbind(1)


def probability(decoder, image, samples, seed=0):
    """p(y | a) as the mean over paths."""
    mean, total = MonteCarlo(decoder, samples), 0.0
    state = mean.init_state(image)
    state.inner.keys.sampling.sampler._generator.manual_seed(seed)
    for before, word in zip(INPUTS, WORDS, strict=True):
        logits, weights, state = mean.step(torch.tensor([before]), state)
        torch.testing.assert_close(weights.sum(-1), torch.ones(1).double(), atol=1e-4, rtol=0)
        total += logits[0].log_softmax(-1)[word]
    return total.exp().item()


@pytest.mark.parametrize("make", [LSTMDecoder, LuongDecoder])
def test_a_captions_probability_is_its_mean_over_all_paths(make):
    decoder, images = toy(make)
    log_prob, given_path = enumerated(decoder, images.of(0))
    assert log_prob.exp().sum().item() == pytest.approx(1)
    exact = (log_prob + given_path).logsumexp(0).exp()
    spread = ((log_prob + 2 * given_path).logsumexp(0).exp() - exact**2).sqrt()
    samples = 20_000
    assert spread > 0.1 * exact  # locations matter
    assert abs(probability(decoder, images.of(0), samples) - exact) < 3 * spread / samples**0.5


def test_stratified_paths_have_less_variance_than_independent_ones():
    decoder, images = toy()
    seeds, ratios = 60, []
    for number in range(len(images)):
        image = images.of(number)
        log_prob, given_path = enumerated(decoder, image)
        exact = (log_prob + given_path).logsumexp(0).exp().item()
        variance = ((log_prob + 2 * given_path).logsumexp(0).exp().item() - exact**2) / 8
        errors = np.array([probability(decoder, image, 8, seed) for seed in range(seeds)]) - exact
        assert abs(errors.mean()) < 3 * (variance / seeds) ** 0.5
        ratios.append((errors**2).mean() / variance)
    assert np.mean(ratios) < 0.75


@pytest.mark.parametrize("distribution", [Soft, Hard])
def test_a_decoder_that_samples_nothing_is_refused(distribution):
    decoder, images = toy(distribution=distribution)
    with pytest.raises(UsageError, match="test_time: sample"):
        search(decoder, images, Decoding(samples=2))
    search(decoder, images, Decoding(samples=1))


@pytest.fixture(params=["lstm", "luong", "transformer"])
def drawing(request):
    """Decoders that sample locations, and three images."""
    if request.param != "transformer":
        return toy({"lstm": LSTMDecoder, "luong": LuongDecoder}[request.param])
    torch.manual_seed(1)
    heads = partial(MultiHead, heads=2, distribution=SAMPLE)
    return randomise(
        TransformerDecoder(V, D, attention=heads, dim=8, layers=2, heads=2, dropout=0.0)
    )


def test_captions_depend_on_the_image_alone(drawing, monkeypatch):
    """Not on the random seed, nor on the other images, some of which leave the search."""
    decoder, images = drawing
    decoding, sizes, step = Decoding(3, samples=8), [], type(decoder).step
    monkeypatch.setattr(type(decoder), "step", lambda *of: sizes.append(len(of[1])) or step(*of))
    together = search(decoder, images, decoding)
    while sizes[-1] == len(images):  # with a larger bias of the end, captions end sooner
        sizes.clear()
        with torch.no_grad():
            decoder.output.bias[END] += 0.5
        together = search(decoder, images, decoding)
    torch.manual_seed(5)
    again = search(decoder, images, decoding)
    for number, found in enumerate(together):
        [alone] = search(decoder, images.of(number), decoding)
        assert [h.tokens for h in again[number]] == [h.tokens for h in found]
        for one, other in zip(alone, found, strict=True):
            assert one.tokens == other.tokens
            assert one.log_prob == pytest.approx(other.log_prob, abs=1e-4)
            torch.testing.assert_close(one.weights, other.weights, atol=1e-4, rtol=0)
    assert any((h.weights > 0.01).sum(-1).max() > 1 for h in itertools.chain(*together))


def test_a_scored_caption_has_the_numbers_of_the_search(drawing):
    decoder, images = drawing
    for number, found in enumerate(search(decoder, images, Decoding(3, samples=8))):
        for hypothesis in found:
            tokens = [hypothesis.tokens]
            (forced,) = score_captions(decoder, images.of(number), tokens, samples=8)
            torch.testing.assert_close(forced.weights, hypothesis.weights, atol=1e-4, rtol=0)
            assert forced.log_prob == pytest.approx(hypothesis.log_prob, abs=1e-4)
            assert forced.log_probs == pytest.approx(hypothesis.log_probs, abs=1e-4)


def test_heads_and_steps_are_independent():
    """Pairs of locations of two heads, and of two steps, have the product of their probabilities."""
    samples, probs = 4000, torch.rand(2, 2, 1, L).softmax(-1)  # two images with two heads each
    probs[..., 1] = 0.0  # masked
    sampler = StratifiedSampler(samples)
    every_path = probs.expand(2, 2, samples, L)
    first, second = (sampler(every_path).view(4, samples) for _ in range(2))
    shares = probs.view(4, L) / probs.view(4, L).sum(-1, keepdim=True)
    for (one, p), (other, q) in [
        ((first[0], shares[0]), (first[1], shares[1])),
        ((first[2], shares[2]), (first[3], shares[3])),
        ((first[0], shares[0]), (second[0], shares[0])),
    ]:
        expected = p[:, None] * q
        pairs = torch.bincount(one * L + other, minlength=L * L).view(L, L) / samples
        assert (pairs - expected).abs().max() < 5 * (expected.max() / samples).sqrt()
        assert pairs[1].sum() == pairs[:, 1].sum() == 0
