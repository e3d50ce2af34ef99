"""Sampled captions: frequencies, truncation, and independence of the batch."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from captioner import load
from captioner.cli.main import main
from captioner.errors import UsageError
from captioner.search.options import WordSampling
from captioner.search.sampling import sample_captions, sample_words, truncate
from layouts import picture
from tests.models.test_monte_carlo import toy
from tests.search.test_beam import IMAGES, images, next_word, sharp_decoder


def plain_truncate(probs, top_k, top_p):
    """Walk down the words by probability."""
    ranked = sorted(range(len(probs)), key=lambda word: -probs[word])[: top_k or None]
    mass, kept = sum(probs[word] for word in ranked), []
    for word in ranked:
        kept.append(word)
        if sum(probs[word] for word in kept) >= top_p * mass:
            break
    return [p if word in kept else 0.0 for word, p in enumerate(probs)]


@pytest.mark.parametrize(
    ("top_k", "top_p"), [(0, 1.0), (3, 1.0), (1, 1.0), (0, 0.6), (0, 1e-9), (4, 0.7)]
)
def test_truncation_equals_a_plain_loop(top_k, top_p):
    probs = torch.randn(50, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    probs = (2 * probs).softmax(-1)
    expected = [plain_truncate(row, top_k, top_p) for row in probs.tolist()]
    np.testing.assert_array_equal(truncate(probs, top_k, top_p), expected)


@pytest.mark.parametrize(
    "options",
    [
        WordSampling(),
        WordSampling(temperature=0.6),
        WordSampling(top_k=2),
        WordSampling(top_p=0.95),
    ],
    ids=["plain", "temperature", "top-k", "nucleus"],
)
def test_frequencies_match_the_probabilities(options):
    """χ² test of the first two words of 4,000 captions, all of them enumerated."""
    decoder, photos = sharp_decoder(0), images(0).of(0)
    options = replace(options, max_length=2, num_captions=100)

    def following(words):
        log_probs = next_word(decoder, photos, words)
        scaled = torch.tensor([*log_probs.values()], dtype=torch.float64) / options.temperature
        probs = plain_truncate(scaled.softmax(-1).tolist(), options.top_k, options.top_p)
        return {word: p / sum(probs) for word, p in zip(log_probs, probs, strict=True) if p}

    expected = {}
    for first, p in following([]).items():
        for second, q in following([first]).items():
            expected[first, second] = p * q
    counts = Counter()
    for seed in range(40):
        for h in sample_captions(decoder, photos, replace(options, seed=seed))[0]:
            counts[(*h.tokens, 2)[:2]] += 1  # 2 is <end>
    total = sum(counts.values())
    assert total == 4000
    assert counts.keys() <= expected.keys()
    frequent = {key: p * total for key, p in expected.items() if p * total >= 5}
    rest = total - sum(frequent.values())
    statistic = sum((counts[key] - mean) ** 2 / mean for key, mean in frequent.items())
    if rest > 1:
        statistic += (total - sum(counts[key] for key in frequent) - rest) ** 2 / rest
    assert len(frequent) > 1
    freedom = torch.tensor((len(frequent) - (rest <= 1)) / 2.0)
    assert torch.special.gammaincc(freedom, torch.tensor(statistic / 2)) > 1e-4


def test_captions_depend_on_image_and_seed_only():
    decoder, photos = sharp_decoder(0), images(0)
    options = WordSampling(num_captions=7, temperature=1.3, min_length=3, max_length=6)
    together = sample_captions(decoder, photos, options)
    for row in range(IMAGES):
        [alone] = sample_captions(decoder, photos.of(row), options)
        assert [h.tokens for h in alone] == [h.tokens for h in together[row]]
        for h, other in zip(alone, together[row], strict=True):
            assert math.isclose(h.log_prob, other.log_prob, abs_tol=1e-4)
            assert 3 <= len(h.tokens) <= 6
        assert len({tuple(h.tokens) for h in alone}) > 1
    changed = sample_captions(decoder, photos, replace(options, seed=1))
    assert [h.tokens for h in changed[0]] != [h.tokens for h in together[0]]


def test_sampled_locations_are_the_same_in_every_call():
    decoder, photos = toy()
    options = WordSampling(num_captions=24, max_length=6)
    together, again = (sample_words(decoder, photos, options) for _ in range(2))
    assert together == again
    for row in range(len(photos)):
        assert sample_words(decoder, photos.of(row), options) == [together[row]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_p": 0.0}, "top_p must be a number above 0"),
        ({"min_length": 9, "max_length": 3}, "min_length must be at most max_length, got 9 and 3"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        WordSampling().with_options(options)


def test_several_captions_are_written_as_json_lines(tiny_folder, tmp_path, capsys):
    """With diverse groups, the best of each group first; the beam is as wide as the groups need."""
    file = picture(tmp_path / "a.png")
    call = ["caption", str(file), "--model", str(tiny_folder), "--num-captions", "4"]
    assert main(call) == 2
    assert "give --format jsonl" in capsys.readouterr().err
    call += ["--format", "jsonl"]
    model = load(tiny_folder)
    for options, same in (
        ([], {}),
        (["--top-p", "0.95", "--seed", "4"], {"top_p": 0.95, "seed": 4}),
        (["--diverse-groups", "4", "--diversity", "3"], {"diverse_groups": 4, "diversity": 3}),
    ):
        assert main([*call, *options]) == 0
        record = json.loads(capsys.readouterr().out)
        found = model.caption(str(file), num_captions=4, **same)
        assert record["captions"] == [found.text, *(c.text for c in found.alternatives)]
        assert record["caption"] == record["captions"][0]
        assert len(record["captions"]) == len(record["log_probs"]) == 4
    assert len(model.caption(str(file), num_captions=2).alternatives) == 1  # the beam has more
