"""Self-critical training against coco-caption's CIDEr-D and against all captions there are."""

import csv
import itertools
import json
import math
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer

import runs
from captioner.cli import main
from captioner.data.dataset import Batch
from captioner.decoding import sample, speakable
from captioner.errors import UsageError
from captioner.evaluation.consensus import Consensus
from captioner.evaluation.fluency import fluency
from captioner.models import Additive, Annotations, Attention, LSTMDecoder
from captioner.models.attention.distributions import Hard
from captioner.text import END, PAD, START, UNK
from captioner.training.self_critical import SelfCritical
from captioner.training.task import CaptioningTask

WORDS = ["a", "dog", "cat", "runs", "sits", "on", "the", "grass", "sofa", "big"]
D, V = 4, UNK + 4  # three words and an end
LENGTH = 2


def sentences(seed, count):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


def test_consensus_is_coco_captions_cider():
    references = [sentences(seed, 5) for seed in range(40)]
    candidates = sentences(99, 40)
    candidates[3] = references[3][0]  # one that is right
    scorer = CiderScorer(n=4, sigma=6.0)
    for candidate, given in zip(candidates, references, strict=True):
        scorer += (candidate, given)
    _, expected = scorer.compute_score()
    consensus = Consensus([[r.split() for r in given] for given in references])
    found = [
        consensus([candidate.split()], [r.split() for r in given])[0]
        for candidate, given in zip(candidates, references, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert found[3] == max(found) > 1


def test_consensus_takes_ids_and_several_captions():
    ids = {word: number for number, word in enumerate(WORDS)}
    references = [[s.split() for s in sentences(seed, 5)] for seed in range(20)]
    numbered = [[[ids[word] for word in s] for s in given] for given in references]
    one, two = Consensus(references), Consensus(numbered)
    assert one(references[1], references[0]) == two(numbered[1], numbered[0])
    assert two([[], [0]], numbered[0])[0] == 0.0
    assert two([[0]], []) == [0.0]
    with pytest.raises(UsageError, match="got none"):
        Consensus([])


def toy():
    """One picture; a decoder with opinions."""
    torch.manual_seed(3)
    attention = partial(Attention, score=partial(Additive, dim=3))
    decoder = LSTMDecoder(V, D, attention, hidden=4, embedding=3, dropout=0.0)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval(), Annotations(torch.randn(1, 4, D, dtype=torch.double), (2, 2))


def all_captions():
    """Every caption of at most two words, as sampled: without an end where there is no room."""
    words = range(UNK + 1, V)
    return [[first, END] for first in words] + [
        list(pair) for pair in itertools.product(words, repeat=2)
    ]


def log_probs(decoder, picture, captions):
    """Of each caption, given what may be written."""
    tokens = torch.full((1, len(captions), LENGTH), PAD)
    for row, caption in enumerate(captions):
        tokens[0, row, : len(caption)] = torch.tensor(caption)
    start = torch.full((1, len(captions), 1), START)
    logits = decoder(picture, torch.cat([start, tokens[..., :-1]], -1)).logits
    first = torch.zeros_like(tokens, dtype=torch.bool)
    first[..., 0] = True
    said = speakable(logits, first).double().log_softmax(-1)
    said = said.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return said.where(tokens != PAD, 0.0).sum(-1)[0]


def test_samples_follow_the_model():
    decoder, picture = toy()
    captions = all_captions()
    torch.manual_seed(4)
    drawn = sample(decoder, picture, 20_000, LENGTH)
    assert drawn.shape == (1, 20_000, LENGTH + 1)
    assert (drawn[..., 0] == START).all()
    with torch.no_grad():
        expected = log_probs(decoder, picture, captions).exp()
    assert expected.sum().item() == pytest.approx(1.0, abs=1e-5)
    for caption, probability in zip(captions, expected.tolist(), strict=True):
        share = (drawn[0, :, 1:] == torch.tensor(caption)).all(-1).double().mean().item()
        error = math.sqrt(probability * (1 - probability) / 20_000)
        assert abs(share - probability) < 4 * error + 1e-4


@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_the_gradient_is_that_of_the_expected_reward(baseline):
    """Σ_w p(w) r(w) over every caption, against the mean of many lessons."""
    decoder, picture = toy()
    references = [[4, 5, END], [5, 6, END], [4, END]]
    corpus = [[[START, *c] for c in references], [[START, 6, 6, END]], [[START, 5, END]]]
    objective = SelfCritical(4, baseline, LENGTH, source="samples")
    objective.begin(corpus)
    captions = all_captions()
    consensus = Consensus([[c[1:] for c in given] for given in corpus])
    rewards = torch.tensor(consensus(captions, references), dtype=torch.double)
    assert rewards.max() > 1.5 * rewards.mean() > 0
    parameters = list(decoder.parameters())

    def gradient(value):
        found = torch.autograd.grad(value, parameters, allow_unused=True)
        return torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).flatten()
                for p, g in zip(parameters, found, strict=True)
            ]
        )

    exact = gradient((log_probs(decoder, picture, captions).exp() * rewards).sum())
    # 50 copies of the picture: 200 captions a lesson.
    many = Annotations(picture.vectors.expand(50, -1, -1), picture.grid)
    tokens = torch.full((50, 3, 4), PAD)
    for row, caption in enumerate(references):
        tokens[:, row, : len(caption) + 1] = torch.tensor([START, *caption])
    torch.manual_seed(5)
    estimates = []
    lessons = 36
    for _ in range(lessons):
        lesson = objective.lesson(decoder, many, tokens)
        decoded = decoder(many, lesson.tokens[..., :-1], "none")
        targets = lesson.tokens[..., 1:]
        loss = objective(decoded, targets, lesson.rewards)
        # The loss is a mean over words; the expected reward one over captions.
        estimates.append(-gradient(loss.total) * (targets != PAD).sum() / 200)
    found = torch.stack(estimates)
    along = found @ exact / exact.norm()
    assert (along.mean() - exact.norm()).abs() < 3 * along.std() / lessons**0.5
    error = (found.mean(0) - exact).abs() / (found.std(0) / lessons**0.5).clamp(min=1e-9)
    assert error.max() < 4.5


def test_a_beams_captions_are_worth_what_cider_says_less_their_mean():
    decoder, picture = toy()
    references = [[4, 5, END], [5, 6, END], [4, END]]
    corpus = [[[START, *c] for c in references], [[START, 6, 6, END]], [[START, 5, END]]]
    objective = SelfCritical(3, "others", LENGTH)
    objective.begin(corpus)
    tokens = torch.full((1, 3, 4), PAD)
    for row, caption in enumerate(references):
        tokens[0, row, : len(caption) + 1] = torch.tensor([START, *caption])
    lesson = objective.lesson(decoder, picture, tokens)
    # Of all captions, the beam of three holds the most probable (a beam of V holds all of length 2).
    captions = all_captions()
    with torch.no_grad():
        likely = log_probs(decoder, picture, captions)
    written = [[t for t in row if t not in (PAD, START)] for row in lesson.tokens[0].tolist()]
    assert captions[int(likely.argmax())] in [[*w, *[PAD] * (LENGTH - len(w))] for w in written]
    assert len({tuple(w) for w in written}) == 3
    consensus = Consensus([[c[1:] for c in given] for given in corpus])
    rewards = torch.tensor(consensus(written, references))
    assert rewards.std() > 0
    torch.testing.assert_close(lesson.rewards[0], (rewards - rewards.mean()) * 3 / 2)
    torch.testing.assert_close(lesson.measures["reward"], rewards.mean())


def test_outside_training_it_is_the_likelihood():
    decoder, picture = toy()
    targets = torch.tensor([[[4, 5, END], [6, END, PAD]]])
    inputs = torch.tensor([[[START, 4, 5], [START, 6, END]]])
    decoded = decoder(picture, inputs)
    loss = SelfCritical()(decoded, targets)
    expected = torch.nn.functional.cross_entropy(
        decoded.logits.flatten(0, -2), targets.flatten(), ignore_index=PAD
    )
    torch.testing.assert_close(loss.measures["nll"], expected)


def test_fluency_counts_what_breaks_off():
    captions = ["a dog runs on the", "a dog runs", "two cats sit with a", "a cat ."]
    assert fluency(captions) == {"mean_length": 3.75, "bad_endings": 50.0}


@pytest.mark.parametrize(("samples", "baseline"), [(0, "greedy"), (1, "others")])
def test_too_few_samples_are_refused(samples, baseline):
    with pytest.raises(UsageError, match=f"got {samples}"):
        SelfCritical(samples, baseline)


@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_a_beam_that_repeats_nothing(baseline):
    """An LSTM that says one word again and again, unless it is kept from it."""
    torch.manual_seed(0)
    decoder, picture = toy()
    with torch.no_grad():
        decoder.output.bias[END] = -20.0
        decoder.output.bias[UNK + 1] = 5.0
    tokens = torch.tensor([[[START, UNK + 1, UNK + 2, END]]])

    def words(no_repeat):
        objective = SelfCritical(2, baseline, 3, no_repeat=no_repeat)
        objective.begin([tokens[0].tolist()])
        rows = objective.lesson(decoder, picture, tokens).tokens[0].tolist()
        return [[t for t in row if t not in (PAD, START, END)] for row in rows]

    assert any(len(set(row)) < len(row) for row in words(0))
    assert all(len(set(row)) == len(row) for row in words(1))


def test_what_is_drawn_may_repeat():
    with pytest.raises(UsageError, match="no_repeat=2 is for captions that a beam finds"):
        SelfCritical(source="samples", no_repeat=2)


def test_places_that_are_drawn_would_not_be_learned():
    attention = partial(Attention, score=partial(Additive, dim=3), distribution=Hard)
    decoder = LSTMDecoder(V, D, attention, hidden=4, embedding=3, dropout=0.0)
    with pytest.raises(UsageError, match="straight_through, or marginal"):
        SelfCritical().check(decoder)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [None, "straight_through", "marginal"])
def test_fine_tuning_from_the_command_line(gradient, run_folder, shapes_cache, tmp_path):
    law = "--model.decoder.attention.distribution"
    given = runs.arguments(
        tmp_path / "tuned",
        shapes_cache,
        *([f"{law}=Hard", f"{law}.gradient={gradient}"] if gradient else []),
        *("--model.objective=SelfCritical", f"--model.init_from={run_folder}"),
        *("--model.learning_rate=1e-4", "--trainer.log_every_n_steps=1"),
        epochs=1,
    )
    assert main(given) == 0
    [result] = (tmp_path / "tuned" / "results").glob("*.json")
    record = json.loads(result.read_text())
    assert record["mean_length"] > 0
    assert record["bad_endings"] >= 0
    with (tmp_path / "tuned" / "logs" / "version_0" / "metrics.csv").open() as file:
        logged = list(csv.DictReader(file))
    assert {"train/advantage_variance", "train/reward"} <= logged[0].keys()
    norms = [float(row["train/attention_gradient_norm"] or 0) for row in logged]
    assert max(norms) > 0, "where to look was not learned"


def small_task(objective, distribution=None):
    """A task of random weights, and a batch of one picture and one caption."""
    torch.manual_seed(0)
    task = CaptioningTask([f"w{n}" for n in range(20)], objective=SelfCritical)
    for module in task.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    if distribution is not None:
        task.captioner.decoder.attention.distribution = distribution
    task.objective = objective
    task.word_dropout = 0.5  # of others' captions alone
    task.trainer = SimpleNamespace(global_step=0, estimated_stepping_batches=9, current_epoch=0)
    tokens = torch.tensor([[[START, UNK + 1, UNK + 2, UNK + 3, END]]])
    objective.begin([tokens[0].tolist()])
    vectors = torch.randn(1, 4, task.captioner.encoder.out_dim)
    return task, Batch(["a"], tokens, vectors, (2, 2), None)


@pytest.mark.parametrize("dropout", [False, True])
def test_dropout_is_off_unless_it_is_asked_for(dropout, monkeypatch):
    """Two steps on one picture: the same likelihood of what it says, or another behind another mask."""
    task, batch = small_task(SelfCritical(dropout=dropout))
    monkeypatch.delattr("captioner.training.task._drop_words")  # it would be asked for
    found = []
    for _ in range(2):
        task.train()
        loss, _ = task._learn(batch)
        found.append(loss.measures["nll"].item())
    assert (found[0] == found[1]) == (not dropout)


def test_hard_attention_says_its_captions_as_at_test_time_behind_dropout_too(monkeypatch):
    """Where it looks is drawn when it learns, not when it searches."""
    task, batch = small_task(
        SelfCritical(dropout=True), distribution=Hard(1, gradient="straight_through")
    )
    found = []
    look = Hard.forward

    def watched(self, *arguments, **options):
        found.append((torch.is_grad_enabled(), self.training))
        return look(self, *arguments, **options)

    monkeypatch.setattr(Hard, "forward", watched)
    task.train()
    task._learn(batch)
    assert set(found) == {(False, False), (True, True)}
