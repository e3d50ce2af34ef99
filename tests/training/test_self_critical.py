"""Self-critical training against coco-caption's CIDEr-D and the enumeration of all captions."""

import itertools
import json
from functools import partial

import numpy as np
import pytest
import torch
from pycocoevalcap.cider.cider_scorer import CiderScorer

import runs
from captioner.cli.main import main
from captioner.data.dataset import CaptionBatch
from captioner.evaluation.cider import CiderD
from captioner.language.vocabulary import END, PAD, START, UNK
from captioner.language.word_classes import fluency
from captioner.models import Additive, Annotations, Attention, LSTMDecoder
from captioner.models.distributions import Hard
from captioner.search.sampling import mask_special_tokens
from captioner.training import SelfCritical
from captioner.training.task import CaptioningTask
from gradients import gradient, is_unbiased

WORDS = ["a", "dog", "cat", "runs", "sits", "on", "the", "grass", "sofa", "big"]
D, V = 4, UNK + 4  # three words
LENGTH = 2
REFERENCES = [[4, 5, END], [5, 6, END], [4, END]]
CORPUS = [[[START, *c] for c in REFERENCES], [[START, 6, 6, END]], [[START, 5, END]]]


def sentences(seed, count):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(1, 9))) for _ in range(count)]


def test_cider_d_equals_coco_caption():
    references = [sentences(seed, 5) for seed in range(40)]
    candidates = sentences(99, 40)
    candidates[3] = references[3][0]  # a correct caption
    scorer = CiderScorer(n=4, sigma=6.0)
    for candidate, captions in zip(candidates, references, strict=True):
        scorer += (candidate, captions)
    _, expected = scorer.compute_score()
    corpus = [[r.split() for r in captions] for captions in references]
    cider = CiderD(corpus)
    pairs = zip(candidates, corpus, strict=True)
    scores = [cider([candidate.split()], captions)[0] for candidate, captions in pairs]
    np.testing.assert_allclose(scores, expected, rtol=1e-9)
    assert scores[3] == max(scores) > 1


def toy():
    """A decoder with distinct preferences, and one image."""
    torch.manual_seed(3)
    attention = partial(Attention, score=partial(Additive, dim=3))
    decoder = LSTMDecoder(V, D, attention=attention, hidden=4, embedding=3, dropout=0.0)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    return decoder.double().eval(), Annotations(torch.randn(1, 4, D, dtype=torch.double), (2, 2))


def reference_tokens(images=1):
    tokens = torch.full((images, 3, 4), PAD)
    for row, caption in enumerate(REFERENCES):
        tokens[:, row, : len(caption) + 1] = torch.tensor([START, *caption])
    return tokens


def all_captions():
    """Every caption of at most two words; those of two words have no end token."""
    words = range(UNK + 1, V)
    pairs = [list(pair) for pair in itertools.product(words, repeat=2)]
    return [[first, END] for first in words] + pairs


def log_probs(decoder, image, captions):
    """The log-probability of each caption, among captions without special tokens."""
    tokens = torch.full((1, len(captions), LENGTH), PAD)
    for row, caption in enumerate(captions):
        tokens[0, row, : len(caption)] = torch.tensor(caption)
    start = torch.full((1, len(captions), 1), START)
    logits = decoder(image, torch.cat([start, tokens[..., :-1]], -1)).logits
    first = torch.zeros_like(tokens, dtype=torch.bool)
    first[..., 0] = True
    words = mask_special_tokens(logits, first).double().log_softmax(-1)
    words = words.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return words.where(tokens != PAD, 0.0).sum(-1)[0]


@pytest.mark.parametrize("baseline", ["greedy", "others"])
def test_the_gradient_is_that_of_the_expected_reward(baseline):
    """Σ_w p(w) r(w) over all captions, against the mean of many rollouts."""
    decoder, image = toy()
    objective = SelfCritical(4, baseline, LENGTH, source="samples")
    objective.setup(CORPUS)
    captions = all_captions()
    cider = CiderD([[c[1:] for c in references] for references in CORPUS])
    rewards = torch.tensor(cider(captions, REFERENCES), dtype=torch.double)
    assert rewards.max() > 1.5 * rewards.mean() > 0
    exact = gradient((log_probs(decoder, image, captions).exp() * rewards).sum(), decoder)
    images = Annotations(image.vectors.expand(50, -1, -1), image.grid)  # 200 captions a rollout
    torch.manual_seed(5)
    estimates = []
    for _ in range(36):
        rollout = objective.rollout(decoder, images, reference_tokens(50))
        targets = rollout.tokens[..., 1:]
        decoded = decoder(images, rollout.tokens[..., :-1])
        loss = objective(decoded, targets, rollout.rewards)
        # The loss is a mean over words, the expected reward a mean over captions.
        estimates.append(-gradient(loss.total, decoder) * (targets != PAD).sum() / 200)
    assert is_unbiased(torch.stack(estimates), exact)


def test_beam_captions_are_rewarded_by_cider_less_the_mean_of_the_others():
    decoder, image = toy()
    objective = SelfCritical(3, "others", LENGTH)
    objective.setup(CORPUS)
    rollout = objective.rollout(decoder, image, reference_tokens())
    captions = all_captions()
    with torch.no_grad():
        most_probable = captions[int(log_probs(decoder, image, captions).argmax())]
    written = [[t for t in row if t not in (PAD, START)] for row in rollout.tokens[0].tolist()]
    assert most_probable in [[*w, *[PAD] * (LENGTH - len(w))] for w in written]
    assert len({tuple(w) for w in written}) == 3
    rewards = torch.tensor(CiderD([[c[1:] for c in g] for g in CORPUS])(written, REFERENCES))
    assert rewards.std() > 0
    torch.testing.assert_close(rollout.rewards[0], (rewards - rewards.mean()) * 3 / 2)
    torch.testing.assert_close(rollout.measures["reward"], rewards.mean())


def test_fluency_counts_incomplete_captions():
    captions = ["a dog runs on the", "a dog runs", "two cats sit with a", "a cat ."]
    assert fluency(captions) == {"mean_length": 3.75, "bad_endings": 50.0}


@pytest.mark.slow
@pytest.mark.parametrize("gradient", [None, "straight_through"])
def test_fine_tuning_from_the_command_line(gradient, run_folder, shapes_cache, tmp_path):
    distribution = "--model.decoder.attention.distribution"
    options = [
        *([f"{distribution}=Hard", f"{distribution}.gradient={gradient}"] if gradient else []),
        *("--model.objective=SelfCritical", f"--model.init_from={run_folder}"),
        *("--model.learning_rate=1e-4", "--trainer.log_every_n_steps=1"),
    ]
    root = tmp_path / "tuned"
    assert main(runs.arguments(root, shapes_cache, *options, epochs=1)) == 0
    [result] = (root / "results").glob("*.json")
    record = json.loads(result.read_text())
    assert record["mean_length"] > 0
    assert record["bad_endings"] >= 0
    assert runs.logged(root, "train/advantage_variance")
    assert runs.logged(root, "train/reward")


def small_task(objective, distribution=None):
    """A task with random weights, and a batch of one image and one caption.

    Word dropout does not apply to generated captions.
    """
    torch.manual_seed(0)
    parts = {"encoder": "CNNEncoder", "neck": "Projection", "decoder": "LSTMDecoder"}
    options = {part: {"class_path": name} for part, name in parts.items()}
    options |= {"objective": {"class_path": "SelfCritical"}, "words": [f"w{n}" for n in range(20)]}
    task = CaptioningTask({**options, "word_dropout": 1.0, "decoding": {}, "val_beam_size": 3})
    for module in task.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.5
    if distribution is not None:
        task.captioner.decoder.attention.distribution = distribution
    task.objective = objective
    tokens = torch.tensor([[[START, UNK + 1, UNK + 2, UNK + 3, END]]])
    objective.setup([tokens[0].tolist()])
    vectors = torch.randn(1, 4, task.captioner.encoder.out_dim)
    return task, CaptionBatch(["a"], Annotations(vectors, (2, 2)), tokens)


def step(task, batch):
    task.train().on_train_batch_start()
    return task.loss(batch)


@pytest.mark.parametrize("dropout", [False, True])
def test_dropout_is_an_option(dropout):
    """In two steps on one image the likelihood differs only with dropout."""
    task, batch = small_task(SelfCritical(dropout=dropout))
    one, two = (step(task, batch)[0].measures["nll"].item() for _ in range(2))
    assert (one == two) == (not dropout)


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize("gradient", ["straight_through", "gumbel_softmax"])
def test_hard_attention_generates_as_at_test_time_and_learns(gradient, dropout, monkeypatch):
    """Whether the rest of the decoder is in training mode or not."""
    hard = Hard(1, gradient=gradient)
    task, batch = small_task(SelfCritical(dropout=dropout), distribution=hard)
    generating = []
    forward = Hard.forward

    def watched(self, *arguments):
        output = forward(self, *arguments)
        if not torch.is_grad_enabled():
            best = output.choice.probs.argmax(-1, keepdim=True)
            generating.append(bool((output.weights.gather(-1, best) > 1 - 1e-6).all()))
        return output

    monkeypatch.setattr(Hard, "forward", watched)
    loss, _ = step(task, batch)
    assert set(generating) == {True}, "not the most probable location"
    loss.total.backward()
    assert task.captioner.decoder.attention.score.energy.weight.grad is not None
