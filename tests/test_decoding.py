"""Search against plain Python that asks the decoder for one prefix at a time."""

import itertools
from collections import Counter
from dataclasses import dataclass
from functools import partial

import pytest
import torch

from captioner.decoding import Decoding, force, search
from captioner.errors import ModelError, UsageError
from captioner.models import Additive, Annotations, Attention, Decoded, Decoder, LSTMDecoder
from captioner.text import END, PAD, START, UNK

V, L, D, PICTURES = 7, 4, 3, 5
WORDS = range(UNK + 1, V)
SEEDS = (0, 1, 2, 5)  # with these the hypotheses of a picture end at different lengths


def sharp_decoder(seed: int, vocab_size: int = V) -> LSTMDecoder:
    """Untrained, with parameters so large that it has strong opinions, which depend on all before."""
    torch.manual_seed(seed)
    attention = partial(Attention, score=partial(Additive, dim=4))
    decoder = LSTMDecoder(vocab_size, D, attention, hidden=6, embedding=5, tied=False)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter)
    return decoder.eval()


def pictures(seed: int) -> Annotations:
    torch.manual_seed(100 + seed)
    mask = torch.rand(PICTURES, L) < 0.8
    mask[:, 0] = True
    return Annotations(torch.randn(PICTURES, L, D), (2, 2), mask)


def one(annotations: Annotations, b: int) -> Annotations:
    assert annotations.mask is not None
    return Annotations(annotations.vectors[b : b + 1], (2, 2), annotations.mask[b : b + 1])


@torch.no_grad()
def teacher(decoder, annotations, captions):
    """Log-probabilities of words and end, and weights, of captions of one length, all at once."""
    inputs = torch.tensor([[[START, *caption] for caption in captions]])
    targets = torch.tensor([[*caption, END] for caption in captions])
    decoded = decoder(annotations, inputs)
    log_probs = decoded.logits[0].log_softmax(-1).gather(-1, targets.unsqueeze(-1))
    return log_probs.squeeze(-1), decoded.weights[0, :, :-1]


@torch.no_grad()
def next_word(decoder, annotations, words):
    """Log-probability of every word that may follow these."""
    logits = decoder(annotations, torch.tensor([[START, *words]])).logits[0, -1]
    log_probs = dict(enumerate(logits.log_softmax(-1).tolist()))
    for banned in (PAD, START, UNK, *([] if words else [END])):
        del log_probs[banned]
    return log_probs


def greedy(decoder, annotations, max_length):
    words = []
    while len(words) < max_length:
        log_probs = next_word(decoder, annotations, words)
        best = max(log_probs, key=log_probs.__getitem__)
        if best == END:
            break
        words.append(best)
    return words


def repeats(words, run):
    """Whether some run of so many words stands twice in a caption."""
    runs = [tuple(words[i : i + run]) for i in range(len(words) - run + 1)]
    return run > 0 and len(set(runs)) < len(runs)


def plain_beam(decoder, annotations, decoding):
    """``search``'s docstring, one prefix at a time: [(score, words)], best first."""
    alive, done = [(0.0, [])], []
    for length in range(decoding.max_length + 1):
        extended = [
            (total + log_prob, [*words, word])
            for total, words in alive
            for word, log_prob in next_word(decoder, annotations, words).items()
            if length < decoding.max_length or word == END
            if not repeats([*words, word], decoding.no_repeat)
        ]
        extended.sort(key=lambda pair: -pair[0])
        ending = [pair for pair in extended[: decoding.beam_size] if pair[1][-1] == END]
        done += [
            (total / len(words) ** decoding.length_penalty, words[:-1]) for total, words in ending
        ]
        if len(done) >= decoding.beam_size:
            break
        alive = [pair for pair in extended if pair[1][-1] != END][: decoding.beam_size]
    return sorted(done[: decoding.beam_size], key=lambda pair: -pair[0])


def ranked(pairs):
    """Words, best first; of those that differ by rounding alone, in the order of the words."""
    return [words for _, words in sorted(pairs, key=lambda pair: (-round(pair[0], 4), pair[1]))]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_beam_of_one_is_greedy(seed):
    decoder, annotations = sharp_decoder(seed), pictures(seed)
    found = search(decoder, annotations, Decoding(beam_size=1, max_length=6))
    for b, hypotheses in enumerate(found):
        assert [h.tokens for h in hypotheses] == [greedy(decoder, one(annotations, b), 6)]


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize("beam_size", [2, 3, 5])
@pytest.mark.parametrize("seed", SEEDS)
def test_equals_a_plain_beam(seed, beam_size, length_penalty):
    decoder, annotations = sharp_decoder(seed), pictures(seed)
    decoding = Decoding(beam_size, 6, length_penalty)
    for b, hypotheses in enumerate(search(decoder, annotations, decoding)):
        expected = plain_beam(decoder, one(annotations, b), decoding)
        assert ranked((h.score, h.tokens) for h in hypotheses) == ranked(expected)
        assert [h.score for h in hypotheses] == pytest.approx([s for s, _ in expected], abs=1e-4)


@pytest.mark.parametrize("run", [1, 2, 3])
@pytest.mark.parametrize("beam_size", [1, 3])
def test_no_run_is_written_twice(beam_size, run):
    changed = 0
    for seed in range(3):
        decoder, annotations = sharp_decoder(seed), pictures(seed)
        free = search(decoder, annotations, Decoding(beam_size, 9))
        held = search(decoder, annotations, Decoding(beam_size, 9, no_repeat=run))
        for b, hypotheses in enumerate(held):
            assert not any(repeats(h.tokens, run) for h in hypotheses)
            expected = plain_beam(
                decoder, one(annotations, b), Decoding(beam_size, 9, no_repeat=run)
            )
            assert ranked((h.score, h.tokens) for h in hypotheses) == ranked(expected)
            changed += [h.tokens for h in hypotheses] != [h.tokens for h in free[b]]
    assert changed > 1


@pytest.mark.parametrize("length_penalty", [0.0, 1.0])
@pytest.mark.parametrize(("vocab_size", "max_length"), [(5, 6), (6, 5), (7, 4)])
def test_a_beam_wide_enough_finds_every_caption(vocab_size, max_length, length_penalty):
    decoder, annotations = sharp_decoder(8, vocab_size), one(pictures(8), 0)
    everything = {}
    for length in range(1, max_length + 1):
        captions = list(itertools.product(range(UNK + 1, vocab_size), repeat=length))
        log_probs, _ = teacher(decoder, annotations, captions)
        for caption, total in zip(captions, log_probs.sum(-1).tolist(), strict=True):
            everything[caption] = (total / (length + 1) ** length_penalty, total)
    beam_size = vocab_size**max_length if vocab_size == 5 else 400
    assert beam_size > len(everything)
    (hypotheses,) = search(decoder, annotations, Decoding(beam_size, max_length, length_penalty))
    assert {tuple(h.tokens) for h in hypotheses} == set(everything)
    assert len(hypotheses) == len(everything)
    for h in hypotheses:
        assert (h.score, h.log_prob) == pytest.approx(everything[tuple(h.tokens)], abs=1e-4)
    assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)


@pytest.mark.parametrize("seed", SEEDS)
def test_words_probabilities_and_weights_move_together(seed):
    decoder, annotations = sharp_decoder(seed), pictures(seed)
    lengths = set()
    for b, hypotheses in enumerate(search(decoder, annotations, Decoding(4, 6))):
        for h in hypotheses:
            log_probs, weights = teacher(decoder, one(annotations, b), [h.tokens])
            assert h.log_probs == pytest.approx(log_probs[0, :-1].tolist(), abs=1e-4)
            assert h.log_prob == pytest.approx(log_probs.sum().item(), abs=1e-4)
            torch.testing.assert_close(h.weights, weights[0], atol=1e-5, rtol=0)
            forced = force(decoder, one(annotations, b), h.tokens)
            assert forced.tokens == h.tokens
            assert forced.log_probs == pytest.approx(h.log_probs, abs=1e-4)
            assert (forced.log_prob, forced.score) == pytest.approx((h.log_prob, h.score), abs=1e-4)
            torch.testing.assert_close(forced.weights, h.weights, atol=1e-5, rtol=0)
            lengths.add(len(h.tokens))
    assert len(lengths) > 1  # else ends were never compared


@pytest.mark.parametrize("beam_size", [1, 3, 20])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_batch_finds_what_its_pictures_find_alone(seed, beam_size):
    decoder, annotations = sharp_decoder(seed), pictures(seed)
    together = search(decoder, annotations, Decoding(beam_size, 6))
    for b in range(PICTURES):
        (alone,) = search(decoder, one(annotations, b), Decoding(beam_size, 6))
        assert [h.tokens for h in together[b]] == [h.tokens for h in alone]
        for h, other in zip(together[b], alone, strict=True):
            assert h.score == pytest.approx(other.score, abs=1e-4)
            torch.testing.assert_close(h.weights, other.weights, atol=1e-5, rtol=0)


@pytest.mark.parametrize("beam_size", [1, 4, 30])
@pytest.mark.parametrize("max_length", [1, 2, 7])
@pytest.mark.parametrize("seed", SEEDS)
def test_what_every_result_is(seed, beam_size, max_length):
    found = search(sharp_decoder(seed), pictures(seed), Decoding(beam_size, max_length))
    assert len(found) == PICTURES
    for hypotheses in found:
        assert 1 <= len(hypotheses) <= beam_size
        assert Counter(tuple(h.tokens) for h in hypotheses).most_common(1)[0][1] == 1
        assert [h.score for h in hypotheses] == sorted((h.score for h in hypotheses), reverse=True)
        for h in hypotheses:
            assert 1 <= len(h.tokens) <= max_length
            assert set(h.tokens) <= set(WORDS)
            assert len(h.log_probs) == len(h.tokens)
            assert h.weights.shape == (len(h.tokens), L)


@dataclass(frozen=True)
class Last:
    """The memory of a Markov chain, the word before."""

    words: torch.Tensor

    def select(self, rows: torch.Tensor) -> "Last":
        return Last(self.words.reshape(len(self.words), -1).gather(1, rows))


class Markov(Decoder, abstract=True):
    """The next word depends on the one before, as a table says."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits = logits

    def start(self, annotations):
        return Last(torch.full((len(annotations),), START))

    def step(self, tokens, state):
        logits = self.logits[tokens]
        return logits, torch.ones(*tokens.shape, 1), Last(tokens)

    def forward(self, annotations, tokens):
        return Decoded(self.logits[tokens], torch.ones(*tokens.shape, 1))


BLANK = Annotations(torch.zeros(2, 1, 1), (1, 1))


@pytest.mark.parametrize("favourite", [PAD, START, END, UNK, WORDS[1]])
@pytest.mark.parametrize("beam_size", [1, 2, 5, 50])
def test_no_obsession_of_a_decoder_gets_through(favourite, beam_size):
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


@pytest.mark.parametrize("beam_size", [1, 3])
def test_search_stops_when_it_has_enough(beam_size, monkeypatch):
    logits = torch.zeros(V, V)
    logits[:, END] = 200.0
    fed = []
    step = Markov.step
    monkeypatch.setattr(Markov, "step", lambda *given: fed.append(given) or step(*given))
    found = search(Markov(logits), BLANK, Decoding(beam_size, 50))
    assert [len(hypotheses) for hypotheses in found] == [beam_size] * 2
    assert len(fed) == 2  # one word, and its end


def test_a_wider_beam_sees_past_a_tempting_first_word():
    tempting, plain, good = WORDS
    probabilities = torch.full((V, V), 1e-9)
    probabilities[START, [tempting, plain]] = torch.tensor([0.6, 0.4])
    probabilities[tempting, [tempting, plain, good, END]] = 0.25
    probabilities[plain, good] = probabilities[good, END] = 1.0
    decoder = Markov(probabilities.log())
    (narrow, _), (wide, _) = (search(decoder, BLANK, Decoding(k, 3, 0.0)) for k in (1, 2))
    assert narrow[0].tokens[0] == tempting
    assert wide[0].tokens == [plain, good]
    assert wide[0].log_prob == pytest.approx(torch.tensor(0.4).log().item(), abs=1e-5)


def test_length_penalty_chooses_between_short_and_long():
    a, b, _ = WORDS
    probabilities = torch.full((V, V), 1e-9)
    probabilities[START, a] = 1.0
    probabilities[a, [END, b]] = torch.tensor([0.55, 0.45])
    probabilities[b, END] = 1.0
    decoder = Markov(probabilities.log())
    # log 0.55 / 2 = -0.30 a token against log 0.45 / 3 = -0.27.
    assert search(decoder, BLANK, Decoding(2, 3, 0.0))[0][0].tokens == [a]
    assert search(decoder, BLANK, Decoding(2, 3, 1.0))[0][0].tokens == [a, b]


@pytest.mark.parametrize("logits", [torch.full((V, V), torch.nan), torch.zeros(4, 4)])
def test_no_caption_possible_is_an_error(logits):
    with pytest.raises(ModelError, match="no caption can be written"):
        search(Markov(logits), BLANK, Decoding(2))


def test_a_negative_run_is_refused():
    with pytest.raises(
        UsageError, match="no_repeat is a number of words, 0 for no such rule, got -1"
    ):
        Decoding(no_repeat=-1)


@pytest.mark.parametrize("options", [{"beam_size": 0}, {"beam_size": -1}, {"max_length": 0}])
def test_impossible_searches_are_refused(options):
    with pytest.raises(UsageError, match="must be 1 or more, got"):
        Decoding(**options)


def test_a_forced_caption_needs_a_word():
    with pytest.raises(UsageError, match="at least one word"):
        force(sharp_decoder(0), one(pictures(0), 0), [])
