"""Beam search against plain Python that decodes one prefix at a time."""

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from captioner import limits
from captioner.errors import ModelError, UsageError
from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.models import Additive, Annotations, Attention, Decoder, LSTMDecoder
from captioner.search.beam import score_captions, search
from captioner.search.options import Decoding

V, L, D, IMAGES = 7, 4, 3, 5
WORDS = range(UNK + 1, V)
SEEDS = (0, 5)  # with these, the hypotheses of an image end at different lengths


def sharp_decoder(seed: int, vocab_size: int = V) -> LSTMDecoder:
    """Untrained, with parameters so large that every earlier word matters."""
    torch.manual_seed(seed)
    attention = partial(Attention, score=partial(Additive, dim=4))
    decoder = LSTMDecoder(vocab_size, D, attention=attention, hidden=6, embedding=5, tied=False)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    return decoder.eval()


def images(seed: int) -> Annotations:
    torch.manual_seed(100 + seed)
    mask = torch.rand(IMAGES, L) < 0.8
    mask[:, 0] = True
    return Annotations(torch.randn(IMAGES, L, D), (2, 2), mask)


@torch.no_grad()
def teacher(decoder, annotations, captions):
    """Log-probabilities of the words and the end of captions of one length."""
    inputs = torch.tensor([[[START, *caption] for caption in captions]])
    targets = torch.tensor([[*caption, END] for caption in captions])
    decoded = decoder(annotations, inputs)
    log_probs = decoded.logits[0].log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    return log_probs.squeeze(-1)


@torch.no_grad()
def next_word(decoder, annotations, words):
    """Log-probability of every word that may follow these."""
    logits = decoder(annotations, torch.tensor([[START, *words]])).logits[0, -1]
    log_probs = dict(enumerate(logits.log_softmax(-1).tolist()))
    for banned in (PAD, START, UNK, *([] if words else [END])):
        del log_probs[banned]
    return log_probs


def repeats(words, run):
    """Return True if a sequence of ``run`` words occurs twice in a caption."""
    runs = [tuple(words[i : i + run]) for i in range(len(words) - run + 1)]
    return run > 0 and len(set(runs)) < len(runs)


def allowed(decoder, annotations, words, decoding):
    """Yield each word that may follow these in a search, and its log-probability."""
    length = len(words)
    for word, log_prob in next_word(decoder, annotations, words).items():
        end = length == decoding.max_length or (length >= decoding.min_length and word == END)
        if (end == (word == END)) and not repeats([*words, word], decoding.no_repeat):
            yield word, log_prob


def plain_beam(decoder, annotations, decoding):
    """Search the captions of one image, group after group: [(score, words)] of each, best first."""
    count, size = decoding.diverse_groups, decoding.beam_size // decoding.diverse_groups
    alive = [[(0.0, 0.0, [])] for _ in range(count)]  # (choice, log-probability, words)
    done = [[] for _ in range(count)]
    for _ in range(decoding.max_length + 1):
        spoken = Counter()  # the words of earlier groups at this step
        for group in range(count):
            extended = [
                (choice + p - decoding.diversity * spoken[word], total + p, [*words, word])
                for choice, total, words in alive[group]
                for word, p in allowed(decoder, annotations, words, decoding)
            ]
            extended.sort(key=lambda triple: -triple[0])
            for _, total, words in extended[:size]:
                if words[-1] == END and len(done[group]) < size:
                    score = total / len(words) ** decoding.length_penalty
                    done[group].append((score, words[:-1]))
            alive[group] = [triple for triple in extended if triple[2][-1] != END][:size]
            if len(done[group]) >= size:
                alive[group] = []
            spoken.update(words[-1] for _, _, words in alive[group])
    return [sorted(pairs, key=lambda pair: -pair[0]) for pairs in done]


def ranked(pairs):
    """Return captions, best first; those of equal rounded score are sorted by their words."""
    return [words for _, words in sorted(pairs, key=lambda pair: (-round(pair[0], 4), pair[1]))]


@pytest.mark.parametrize(
    ("beam_size", "length_penalty", "min_length"),
    [(1, 1.0, 1), (2, 0.0, 1), (5, 1.0, 1), (3, 0.0, 4), (2, 0.0, 6)],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_a_plain_beam(seed, beam_size, length_penalty, min_length):
    decoder, annotations = sharp_decoder(seed), images(seed)
    decoding = Decoding(beam_size, 6, length_penalty, min_length=min_length)
    for b, hypotheses in enumerate(search(decoder, annotations, decoding)):
        [expected] = plain_beam(decoder, annotations.of(b), decoding)
        assert ranked((h.score, h.tokens) for h in hypotheses) == ranked(expected)
        assert [h.score for h in hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-4)


@pytest.mark.parametrize(
    ("beam_size", "groups", "diversity", "more"),
    [
        (2, 2, 0.5, {}),
        (6, 3, 1.5, {}),
        (6, 2, 0.7, {"min_length": 3, "length_penalty": 0.0}),
        (4, 2, 0.0, {"no_repeat": 1}),
        (10, 2, 9.0, {}),  # groups that are larger than the vocabulary
    ],
)
@pytest.mark.parametrize("seed", SEEDS)
def test_diverse_beam_search_equals_a_plain_one(seed, beam_size, groups, diversity, more):
    decoder, annotations = sharp_decoder(seed), images(seed)
    decoding = Decoding(beam_size, 5, diverse_groups=groups, diversity=diversity, **more)
    together = search(decoder, annotations, decoding)
    for b, hypotheses in enumerate(together):
        found = plain_beam(decoder, annotations.of(b), decoding)
        # The best of each group comes first, and what repeats another caption comes last.
        parts = (slice(1), slice(1, None))
        firsts, others = ({tuple(w): s for pairs in found for s, w in pairs[of]} for of in parts)
        others = {words: score for words, score in others.items() if words not in firsts}
        pairs = [(h.score, tuple(h.tokens)) for h in hypotheses]
        for part in (firsts, others):
            given, pairs = pairs[: len(part)], pairs[len(part) :]
            assert ranked(given) == ranked((score, words) for words, score in part.items())
        everything = Counter(tuple(words) for pairs in found for _, words in pairs)
        assert Counter(words for _, words in pairs) == everything - Counter([*firsts, *others])
        scored = score_captions(decoder, annotations.of(b), [h.tokens for h in hypotheses])
        assert [h.log_prob for h in hypotheses] == pytest.approx(  # without the penalties
            [h.log_prob for h in scored], abs=1e-4
        )
        (alone,) = search(decoder, annotations.of(b), decoding)
        assert [h.tokens for h in alone] == [h.tokens for h in hypotheses]


def test_groups_have_first_words_of_their_own():
    decoder, annotations = sharp_decoder(0), images(0)
    apart = search(decoder, annotations, Decoding(4, 6, diverse_groups=4, diversity=99))
    for hypotheses in apart:  # three of the groups, as there are three words
        assert len({h.tokens[0] for h in hypotheses}) == len(WORDS) == 3
    with pytest.raises(UsageError, match=r"multiple of diverse_groups, got 5 and 2"):
        Decoding(5, diverse_groups=2)


@pytest.mark.parametrize(("beam_size", "run"), [(1, 1), (3, 1), (3, 2), (3, 3)])
def test_no_run_is_written_twice(beam_size, run):
    changed = 0
    for seed in range(3):
        decoder, annotations = sharp_decoder(seed), images(seed)
        free = search(decoder, annotations, Decoding(beam_size, 9))
        held = search(decoder, annotations, Decoding(beam_size, 9, no_repeat=run))
        for b, hypotheses in enumerate(held):
            assert not any(repeats(h.tokens, run) for h in hypotheses)
            [expected] = plain_beam(
                decoder, annotations.of(b), Decoding(beam_size, 9, no_repeat=run)
            )
            assert ranked((h.score, h.tokens) for h in hypotheses) == ranked(expected)
            changed += [h.tokens for h in hypotheses] != [h.tokens for h in free[b]]
    assert changed > 1


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize(("vocab_size", "max_length"), [(5, 6), (7, 3)])
def test_a_beam_wide_enough_finds_every_caption(vocab_size, max_length, length_penalty):
    decoder, annotations = sharp_decoder(8, vocab_size), images(8).of(0)
    everything = {}
    for length in range(1, max_length + 1):
        captions = list(itertools.product(range(UNK + 1, vocab_size), repeat=length))
        log_probs = teacher(decoder, annotations, captions)
        for caption, total in zip(captions, log_probs.sum(-1).tolist(), strict=True):
            everything[caption] = (total / (length + 1) ** length_penalty, total)
    assert len(everything) < limits.DECODING["beam_size"].high
    (hypotheses,) = search(decoder, annotations, Decoding(100, max_length, length_penalty))
    assert {tuple(h.tokens) for h in hypotheses} == set(everything)
    assert len(hypotheses) == len(everything)
    for h in hypotheses:
        assert (h.score, h.log_prob) == pytest.approx(everything[tuple(h.tokens)], abs=1e-4)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


@pytest.mark.parametrize(("max_length", "beam_size"), [(1, 4), (6, 1), (6, 4), (6, 20)])
@pytest.mark.parametrize("seed", SEEDS)
def test_hypotheses_are_those_of_each_image_alone_and_score_as_when_forced(
    seed, max_length, beam_size
):
    decoder, annotations = sharp_decoder(seed), images(seed)
    together = search(decoder, annotations, Decoding(beam_size, max_length))
    lengths = set()
    for b, hypotheses in enumerate(together):
        (alone,) = search(decoder, annotations.of(b), Decoding(beam_size, max_length))
        assert [h.tokens for h in hypotheses] == [h.tokens for h in alone]
        assert 1 <= len(hypotheses) <= beam_size
        assert len({tuple(h.tokens) for h in hypotheses}) == len(hypotheses)
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        scored = score_captions(decoder, annotations.of(b), [h.tokens for h in hypotheses])
        for h, forced in zip(hypotheses, scored, strict=True):
            assert 1 <= len(h.tokens) <= max_length
            assert set(h.tokens) <= set(WORDS)
            assert forced.tokens == h.tokens
            assert forced.log_probs == pytest.approx(h.log_probs, abs=1e-4)
            assert (forced.log_prob, forced.score) == pytest.approx((h.log_prob, h.score), abs=1e-4)
            assert h.weights.shape == (len(h.tokens), L)
            torch.testing.assert_close(forced.weights, h.weights, atol=1e-5, rtol=0)
            log_probs = teacher(decoder, annotations.of(b), [h.tokens])
            assert h.log_prob == pytest.approx(log_probs.sum().item(), abs=1e-4)
            lengths.add(len(h.tokens))
    assert len(lengths) > 1 or 1 in (max_length, beam_size)  # so that ends are compared


@dataclass(frozen=True)
class Last:
    """The state of a Markov chain: the last word."""

    words: torch.Tensor

    def reorder(self, rows: torch.Tensor) -> "Last":
        return Last(self.words.reshape(len(self.words), -1).gather(1, rows))


class Markov(Decoder, abstract=True):
    """The logits of the next word are a row of a table."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def init_state(self, annotations, rows=1, sampling=None):
        return Last(torch.full((len(annotations),), START))

    def step(self, tokens, state):
        logits = self.logits[tokens]
        return logits, torch.ones(*tokens.shape, 1), Last(tokens)


BLANK = Annotations(torch.zeros(2, 1, 1), (1, 1))


@pytest.mark.parametrize("favourite", [PAD, START, END, UNK, WORDS[1]])
@pytest.mark.parametrize("beam_size", [1, 50])
def test_special_tokens_are_never_written_however_probable(favourite, beam_size):
    logits = torch.zeros(V, V)
    logits[:, favourite] = 200.0
    for hypotheses in search(Markov(logits), BLANK, Decoding(beam_size, 3)):
        assert hypotheses
        for h in hypotheses:
            assert set(h.tokens) <= set(WORDS)
            assert 1 <= len(h.tokens) <= 3
    if favourite == END:
        assert len(hypotheses[0].tokens) == 1
    if favourite == WORDS[1]:
        assert hypotheses[0].tokens == [WORDS[1]] * 3


@pytest.mark.parametrize("logits", [torch.full((V, V), torch.nan), torch.zeros(4, 4)])
def test_no_caption_possible_is_an_error(logits):
    with pytest.raises(ModelError, match="no caption can be written"):
        search(Markov(logits), BLANK, Decoding(2))


def test_decoding_checks_its_options():
    for option, expected in limits.DECODING.items():
        with pytest.raises(UsageError, match=f"^{option} must be "):
            Decoding().with_options({option: type(getattr(Decoding(), option))(expected.high + 1)})
    with pytest.raises(UsageError, match="beam_size × samples must be at most 1000, got 100 × 11"):
        Decoding(100, samples=11)


@pytest.mark.parametrize(("beam_size", "largest"), [(3, 5), (100, 2)])
def test_fewer_images_are_searched_together_with_a_larger_beam(beam_size, largest, monkeypatch):
    decoder, annotations = sharp_decoder(0), images(0)
    expected = search(decoder, annotations, Decoding(beam_size, 4))
    monkeypatch.setattr(limits, "MAX_ROWS", 200)
    sizes, init = [], decoder.init_state
    monkeypatch.setattr(
        decoder, "init_state", lambda images, **options: sizes.append(len(images)) or init(images)
    )
    found = search(decoder, annotations, Decoding(beam_size, 4))
    assert sum(sizes) == IMAGES
    assert max(sizes) == largest
    for one, other in zip(found, expected, strict=True):
        assert [h.tokens for h in one] == [h.tokens for h in other]


def test_a_forced_caption_needs_a_word():
    with pytest.raises(UsageError, match="at least one word"):
        score_captions(sharp_decoder(0), images(0).of(0), [[5], []])
