"""Hard attention's objective against the exact gradient, had by enumerating every path of locations."""

import itertools
import json
import math
import re
from dataclasses import replace
from functools import partial

import pytest
import torch

import runs
from captioner import checkpoint
from captioner.cli import main
from captioner.errors import ModelError, UsageError
from captioner.models import (
    Annotations,
    Attention,
    LSTMDecoder,
    LuongDecoder,
    TransformerDecoder,
)
from captioner.models.attention import Additive, Asked, Hard, MultiHead, ScaledDot, Soft
from captioner.models.attention.distributions import Distribution, Weights
from captioner.text import END, PAD, START
from captioner.training.lower_bound import LowerBound
from captioner.training.objectives import Likelihood

L, D, V = 4, 5, 9
WORDS = [6, 8, END]  # y; T = 3
T = len(WORDS)
ROWS, GROUP, BATCHES = 200, 4, 100  # 20,000 samples
BASELINES = ("none", "moving_average", "per_step", "leave_one_out")
CREDITS = ("caption", "to_go")


class Path(Distribution, abstract=True):
    """Row r looks at ``paths[r, t]`` at step t, as if it had drawn it."""

    def __init__(self, paths):
        super().__init__(0)
        self.paths = paths

    def forward(self, scores, mask, asked):
        log_probs = scores.log_softmax(-1)
        step = torch.as_tensor(asked.step).flatten()[0]  # the same for all rows
        place = self.paths[:, step].view(1, -1, 1)
        drawn = torch.zeros_like(scores).scatter(-1, place, 1.0)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return Weights(drawn, log_probs.gather(-1, place).squeeze(-1), entropy)


def toy(seed=1, distribution=Hard, decoder=LSTMDecoder, **options):
    """A small decoder that cares where it looks, in training mode; one picture."""
    torch.manual_seed(seed)
    attention = partial(Attention, score=partial(Additive, dim=3), distribution=distribution)
    made = decoder(V, D, attention, hidden=4, embedding=3, dropout=0.0, **options)
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter, std=0.8)
    picture = Annotations(2 * torch.randn(1, L, D, dtype=torch.double), (2, 2))
    return made.double().train(), picture


def inputs(rows):
    return torch.tensor([[START, *WORDS[:-1]]]).expand(rows, -1).unsqueeze(0)


def targets(rows):
    return torch.tensor([WORDS]).expand(rows, -1).unsqueeze(0)


def enumerated(decoder, picture):
    """Of every path: log p(s | a), log p(y | s, a) and the entropy H[s], each (L**T,)."""
    paths = torch.tensor(list(itertools.product(range(L), repeat=T)))
    sampling = decoder.attention.distribution
    decoder.attention.distribution = Path(paths)
    decoded = decoder(picture, inputs(len(paths)))
    decoder.attention.distribution = sampling
    words = targets(len(paths)).unsqueeze(-1)
    said = decoded.logits.log_softmax(-1).gather(-1, words).squeeze(-1)
    parts = decoded.log_prob.sum(-1)[0], said.sum(-1)[0], decoded.entropy.sum(-1)[0]
    assert parts[0].exp().sum().item() == pytest.approx(1.0)
    return parts


def gradient(value, decoder):
    parameters = [p for p in decoder.parameters() if p.requires_grad]
    found = torch.autograd.grad(value, parameters, allow_unused=True)
    return torch.cat(
        [
            (torch.zeros_like(p) if g is None else g).flatten()
            for p, g in zip(parameters, found, strict=True)
        ]
    )


def estimates(decoder, picture, objective):
    """(BATCHES, P): the estimator's gradients of the bound, each the mean of ROWS samples."""
    torch.manual_seed(2)
    objective.train()
    found = []
    for _ in range(BATCHES + 1):
        decoded = decoder(picture, inputs(ROWS))
        loss = objective(decoded, targets(ROWS))
        found.append(-T * gradient(loss.total, decoder))
    return torch.stack(found[1:])  # the first set the running means


def deviation(found, exact):
    """How many standard errors the mean is off: along the exact gradient, and the worst of all."""
    error = found.mean(0) - exact
    along = found @ exact / exact.norm()
    off = (along.mean() - exact.norm()).abs() / (along.std() / math.sqrt(BATCHES))
    # A gradient that never varies must be exact: an error of 1e-9 is a whole standard error.
    each = error.abs() / (found.std(0) / math.sqrt(BATCHES)).clamp(min=1e-9)
    return off.item(), each.max().item()


def objective(**options):
    chosen = {"samples": GROUP, "entropy_weight": 0.0, "doubly_stochastic": 0.0, **options}
    return LowerBound(**chosen)


@pytest.fixture(scope="module")
def exact():
    decoder, picture = toy()
    log_prob, said, _ = enumerated(decoder, picture)
    bound = (log_prob.exp() * said).sum()
    assert bound < torch.logsumexp(log_prob + said, 0)  # it is a bound, by Jensen
    return gradient(bound, decoder)


@pytest.fixture(scope="module")
def sampled():
    """The estimates of every baseline and credit."""
    decoder, picture = toy()
    return {
        (baseline, credit): estimates(decoder, picture, objective(baseline=baseline, credit=credit))
        for baseline in BASELINES
        for credit in CREDITS
    }


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_the_estimator_follows_the_exact_gradient(baseline, credit, exact, sampled):
    off, worst = deviation(sampled[baseline, credit], exact)
    assert off < 3
    assert worst < 4.5  # of a hundred parameters


def test_without_the_score_term_it_does_not(exact):
    """The test above can fail: backpropagation through the words alone is far off."""
    decoder, picture = toy()
    off, worst = deviation(estimates(decoder, picture, objective(reward_weight=0.0)), exact)
    assert max(off, worst) > 10


def test_baselines_reduce_the_variance(sampled, capsys):
    spread = {name: ROWS * found.var(0).sum().item() for name, found in sampled.items()}
    with capsys.disabled():
        print("\nvariance of one sample's gradient:")
        for (baseline, credit), value in spread.items():
            print(f"  {baseline:15} {credit:8} {value:9.2f}")
    for credit in CREDITS:
        for baseline in BASELINES[1:]:
            assert spread[baseline, credit] < 0.8 * spread["none", credit]
    # One number for all steps is no mean of rewards that shrink with every word.
    for baseline in ("none", "per_step", "leave_one_out"):
        assert spread[baseline, "to_go"] < spread[baseline, "caption"]


def test_the_entropy_term_is_that_of_the_sampled_path():
    """λ_e ∂H[s̃]: its expectation is Σ p(s) ∂H[s], beside Σ p(s) ∂ log p(y | s)."""
    decoder, picture = toy()
    log_prob, said, entropy = enumerated(decoder, picture)
    expected = gradient((log_prob.exp().detach() * (said + 2.0 * entropy)).sum(), decoder)
    found = estimates(decoder, picture, objective(entropy_weight=2.0, reward_weight=0.0))
    off, worst = deviation(found, expected)
    assert off < 3
    assert worst < 4.5


def test_an_expectation_is_soft_attention():
    """With the coin always up: the numbers and the gradient of Soft, and no score term."""
    hard, picture = toy(distribution=partial(Hard, expectation=1.0))
    soft, _ = toy(distribution=Soft)
    one = objective(entropy_weight=0.0, doubly_stochastic=0.5)(
        hard(picture, inputs(GROUP)), targets(GROUP)
    )
    two = Likelihood(0.5, 0.0)(soft(picture, inputs(1)), targets(1))
    assert one.terms["reinforce"] == 0
    torch.testing.assert_close(one.total, two.total)
    torch.testing.assert_close(gradient(one.total, hard), gradient(two.total, soft))


def test_one_coin_a_picture():
    """All words of all captions of a picture are sampled, or none is."""
    decoder, _ = toy(distribution=partial(Hard, expectation=0.5))
    pictures = Annotations(torch.randn(400, L, D, dtype=torch.double), (2, 2))
    weights = decoder(pictures, inputs(3).expand(400, -1, -1)).weights
    sampled = (weights.amax(-1) == 1).flatten(1)  # (400, R·T)
    assert (sampled.all(1) | ~sampled.any(1)).all()
    assert sampled.all(1).double().mean().item() == pytest.approx(0.5, abs=0.08)
    assert (decoder.eval()(pictures, inputs(3).expand(400, -1, -1)).weights.amax(-1) == 1).all()


def test_straight_through_is_hard_forward_and_relaxed_backward():
    scores = torch.randn(1, 50, L, dtype=torch.double, requires_grad=True)
    law = Hard(1, gradient="straight_through", temperature=0.7).train()
    asked = law_asked(50)
    torch.manual_seed(3)
    found = law(scores, None, asked)
    values = found.weights
    torch.testing.assert_close(values.detach().amax(-1), torch.ones(1, 50, dtype=torch.double))
    assert found.log_prob is None
    direction = torch.randn(1, 50, L, dtype=torch.double)
    [got] = torch.autograd.grad((values * direction).sum(), scores)
    torch.manual_seed(3)
    race = torch.empty(1, 50, L, dtype=torch.double).exponential_()
    free = scores.detach().requires_grad_()
    relaxed = (((free / 0.7).log_softmax(-1) - race.log()) / 0.7).softmax(-1)
    [expected] = torch.autograd.grad((relaxed * direction).sum(), free)
    torch.testing.assert_close(got, expected)
    assert torch.equal(relaxed.argmax(-1), values.argmax(-1))


def marginal(top=L):
    return partial(Hard, gradient="marginal", top=top)


def likelihood(decoder, picture, words=WORDS):
    given = torch.tensor([[[START, *words[:-1]]]])
    loss = Likelihood(0.0, 0.0)(decoder(picture, given), torch.tensor([[words]]))
    return -len(words) * loss.total


def test_a_marginal_is_exact_where_the_state_does_not_depend_on_it():
    """Update, then attend, without feeding: log p(y | a) over every path, and its gradient."""
    options = {"decoder": LuongDecoder, "input_feeding": False}
    decoder, picture = toy(distribution=marginal(), **options)
    found = likelihood(decoder, picture)
    one, _ = toy(**options)
    paths = torch.tensor(list(itertools.product(range(L), repeat=T)))
    log_prob, said = by_hand(one, picture, paths)
    exact = torch.logsumexp(log_prob + said, 0)
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(gradient(found, decoder), gradient(exact, one))


@pytest.mark.parametrize("make", [LSTMDecoder, LuongDecoder])
def test_a_marginal_of_one_word_is_exact(make):
    decoder, picture = toy(distribution=marginal(), decoder=make)
    found = likelihood(decoder, picture, [END])
    one, _ = toy(decoder=make)
    log_prob, said = by_hand(one, picture, torch.arange(L).unsqueeze(-1), [END])
    exact = torch.logsumexp(log_prob + said, 0)
    torch.testing.assert_close(found, exact)
    torch.testing.assert_close(gradient(found, decoder), gradient(exact, one))


def by_hand(decoder, picture, paths, words=WORDS):
    """Of every path log p(s | a) and log p(y | s, a), word by word through ``step``."""
    decoder.attention.distribution = Path(paths)
    state = decoder.begin(picture, paths.unsqueeze(0))
    log_prob = said = 0.0
    for before, word in zip([START, *words[:-1]], words, strict=True):
        scores = []
        hook = decoder.attention.score.register_forward_hook(
            lambda _module, _given, found, scores=scores: scores.append(found)
        )
        words_in = int(state.words)
        logits, weights, state = decoder.step(torch.full((1, len(paths)), before), state)
        hook.remove()
        place = paths[:, words_in].unsqueeze(-1)
        assert torch.equal(weights[0].argmax(-1, keepdim=True), place)
        log_prob = log_prob + scores[0][0].log_softmax(-1).gather(-1, place).squeeze(-1)
        said = said + logits[0].log_softmax(-1)[:, word]
    return log_prob, said


def test_a_marginal_of_the_most_probable_position_is_the_argmax():
    """With one position tried, what is said in training is what argmax says in evaluation."""
    for make in (LSTMDecoder, LuongDecoder):
        decoder, picture = toy(distribution=marginal(top=1), decoder=make)
        trained = decoder(picture, inputs(1)).logits.log_softmax(-1)
        torch.testing.assert_close(
            trained, decoder.eval()(picture, inputs(1)).logits.log_softmax(-1)
        )


def test_a_marginal_has_no_noise_and_says_where_it_would_look():
    decoder, picture = toy(distribution=marginal(top=2))
    decoded = decoder(picture, inputs(GROUP))
    assert decoded.log_prob is None
    assert ((decoded.weights > 0).sum(-1) == 2).all()
    torch.testing.assert_close(decoded.weights.sum(-1), torch.ones(1, GROUP, T).double())
    torch.testing.assert_close(decoded.logits[:, 1:], decoded.logits[:, :-1])
    torch.testing.assert_close(decoded.expected.sum(-1), torch.ones(1, GROUP, T).double())


def law_asked(queries):
    return Asked(torch.zeros(1, queries, 1, dtype=torch.double), (2, 2), None)


@pytest.mark.parametrize("gradient_name", ["score_function", "straight_through"])
def test_samples_follow_the_heated_probabilities(gradient_name):
    scores = torch.tensor([2.0, 1.0, 0.0, -1.0], dtype=torch.double)
    law = Hard(1, gradient=gradient_name, temperature=2.0).train()
    law.heat = 3.0
    torch.manual_seed(4)
    found = law(scores.expand(1, 40_000, L), None, law_asked(40_000))
    share = found.weights.mean((0, 1))
    torch.testing.assert_close(share, (scores / 6).softmax(-1), atol=0.01, rtol=0)
    torch.testing.assert_close(found.expected[0, 0], (scores / 6).softmax(-1))
    cool = Hard(1, "expectation", temperature=2.0).eval()  # heat is for training
    cool.heat = 3.0
    weights = cool(scores.expand(1, 1, L), None, law_asked(1)).weights
    torch.testing.assert_close(weights[0, 0], (scores / 2).softmax(-1))


@pytest.mark.parametrize("credit", CREDITS)
@pytest.mark.parametrize("baseline", BASELINES)
def test_padding_counts_nowhere(baseline, credit):
    decoder, picture = toy()
    torch.manual_seed(5)
    decoded = decoder(picture, inputs(GROUP))
    whole = objective(baseline=baseline, credit=credit, doubly_stochastic=1.0, entropy_weight=0.1)
    longer = targets(GROUP).clone()
    padded = torch.nn.functional.pad(longer, (0, 2), value=PAD)
    parts = vars(replace(decoded, said=decoded.logits, there=None))
    noise = {
        name: torch.nn.functional.pad(part, (0,) * (2 * (part.ndim - 3)) + (0, 2), value=7.0)
        for name, part in parts.items()
        if part is not None
    }
    one = whole(decoded, longer)
    again = objective(baseline=baseline, credit=credit, doubly_stochastic=1.0, entropy_weight=0.1)(
        type(decoded)(**noise), padded
    )
    for name, value in {**one.terms, **one.measures}.items():
        other = {**again.terms, **again.measures}[name]
        torch.testing.assert_close(other.double(), value.double(), msg=name)


def test_running_means_start_from_the_first_batch_and_rest_in_evaluation():
    decoder, picture = toy()
    kept = objective(baseline="moving_average")
    torch.manual_seed(6)
    first = kept(decoder(picture, inputs(GROUP)), targets(GROUP)).measures
    assert first["baseline"].item() == pytest.approx(first["reward"].item())
    second = kept(decoder(picture, inputs(GROUP)), targets(GROUP)).measures
    assert second["baseline"].item() == pytest.approx(first["reward"].item())
    expected = 0.9 * first["reward"].item() + 0.1 * second["reward"].item()
    kept.eval()
    for _ in range(2):
        found = kept(decoder(picture, inputs(1)), targets(1)).measures["baseline"]
        assert found.item() == pytest.approx(expected, rel=1e-6)


def test_every_caption_is_decoded_several_times():
    tokens = torch.tensor([[[START, 5, END], [START, 7, END]]])
    lesson = objective().lesson(*toy(), tokens)
    assert lesson.tokens.tolist() == [[[START, 5, END]] * GROUP + [[START, 7, END]] * GROUP]
    assert lesson.rewards is None


def test_what_is_logged_adds_up():
    decoder, picture = toy()
    loss = objective(doubly_stochastic=0.3, entropy_weight=0.2)(
        decoder(picture, inputs(GROUP)), targets(GROUP)
    )
    assert set(loss.terms) == {"likelihood", "reinforce", "entropy", "doubly_stochastic"}
    assert sum(loss.terms.values()).item() == pytest.approx(loss.total.item())
    shares = [value.item() for name, value in loss.measures.items() if name.startswith("share_")]
    assert sum(shares) == pytest.approx(1)
    assert not any(value.requires_grad for value in loss.measures.values())


@pytest.mark.slow
@pytest.mark.parametrize("decoder", [LSTMDecoder, LuongDecoder])
def test_hard_attention_learns_where_to_look(decoder):
    """From scratch: one cell of nine says the word, its place varies, the others are noise."""
    torch.manual_seed(7)
    cells, kinds, width = 9, 6, 12
    attention = partial(Attention, score=partial(Additive, dim=32), distribution=Hard)
    model = decoder(START + 4 + kinds, width, attention, hidden=32, embedding=16, dropout=0.0)
    bound = LowerBound(
        samples=4, baseline="leave_one_out", entropy_weight=0.02, doubly_stochastic=0.0
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def scenes(count):
        kind, place = torch.randint(kinds, (count,)), torch.randint(cells, (count,))
        vectors = torch.randn(count, cells, width) / 2
        says = torch.zeros(count, width)
        says[torch.arange(count), kind] = 3.0
        says[:, -1] = 3.0  # and looks like something that says a word
        vectors[torch.arange(count), place] = says
        return Annotations(vectors, (3, 3)), kind + START + 3, place

    for _ in range(400):
        pictures, word, _ = scenes(64)
        given = torch.full((64, 4, 1), START)
        loss = bound.train()(model.train()(pictures, given), word.view(-1, 1, 1).expand(-1, 4, -1))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    pictures, word, place = scenes(1000)
    found = model.eval()(pictures, torch.full((1000, 1), START))
    assert (found.weights[:, 0].argmax(-1) == place).double().mean() >= 0.95
    assert (found.logits[:, 0].argmax(-1) == word).double().mean() >= 0.95


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 0}, "1 sample or more"),
        ({"baseline": "leave_one_out", "samples": 1}, "2 samples or more"),
        ({"heat": 0.0}, "above 0"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        LowerBound(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"expectation": 1.5}, "from 0 to 1"),
        ({"gradient": "marginal", "top": 0}, "1 or more"),
        ({"gradient": "marginal", "expectation": 0.5}, "draws nothing"),
    ],
)
def test_impossible_draws_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        Hard(1, **options)


def test_a_decoder_that_cannot_be_trained_so_is_refused():
    with pytest.raises(UsageError, match="draws no locations"):
        LowerBound().check(toy(distribution=Soft)[0])
    with pytest.raises(UsageError, match="draws no locations"):
        LowerBound().check(toy(distribution=partial(Hard, gradient="straight_through"))[0])
    with pytest.raises(UsageError, match="choose the objective LowerBound"):
        Likelihood().check(toy()[0])
    Likelihood().check(toy(distribution=partial(Hard, gradient="straight_through"))[0])
    Likelihood().check(toy(distribution=marginal())[0])
    LowerBound().check(toy()[0])


def test_decoders_that_cannot_try_positions_are_refused():
    with pytest.raises(ModelError, match="MultiHead has several"):
        MultiHead(8, 8, heads=2, dim=8, distribution=marginal())
    one_head = partial(Attention, score=ScaledDot, distribution=marginal())
    with pytest.raises(ModelError, match="in a Transformer"):
        TransformerDecoder(V, D, one_head, dim=8, heads=2, layers=1, feed_forward=8)
    with pytest.raises(ModelError, match="without intra"):
        toy(distribution=marginal(), intra=True)


def test_the_command_line_says_so_in_one_line(tmp_path, capsys):
    folders = [f"--data.cache_dir={tmp_path}", f"--trainer.default_root_dir={tmp_path}/run"]
    scenes = [f"--data.shapes.{split}=8" for split in ("train", "val", "test")]
    hard = ["fit", "--config=configs/shapes.yaml", "--model.objective=LowerBound"]
    assert main([*hard, *folders, *scenes]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert said.startswith("captioner: LowerBound trains hard attention")


HARD = (
    "--model.objective=LowerBound",
    "--model.decoder.init_args.attention.init_args.distribution=Hard",
)


@pytest.mark.slow
def test_a_hard_model_starts_from_a_soft_one(run_folder, shapes_cache, tmp_path):
    """With a learning rate of nothing it ends as the soft model began; what it logs is there."""
    still = ("--model.learning_rate=1e-12", "--model.objective.samples=2")
    given = runs.arguments(
        tmp_path / "hard",
        shapes_cache,
        *(*HARD, *still, f"--model.init_from={run_folder}", "--trainer.log_every_n_steps=1"),
        epochs=1,
    )
    assert main(given) == 0
    soft, hard = (checkpoint.load(folder).captioner for folder in (run_folder, tmp_path / "hard"))
    for (name, one), two in zip(
        soft.decoder.named_parameters(), hard.decoder.parameters(), strict=True
    ):
        torch.testing.assert_close(one, two, atol=1e-6, rtol=0, msg=name)
    assert hard.decoder.mechanism == "LuongDecoder: Additive × Hard (argmax)"
    [result] = (tmp_path / "hard" / "results").glob("*.json")
    assert json.loads(result.read_text())["mechanism"] == hard.decoder.mechanism
    logged = (tmp_path / "hard" / "logs" / "version_0" / "metrics.csv").read_text().splitlines()[0]
    for name in ("reward", "baseline", "advantage_variance", "location_entropy", "share_reinforce"):
        assert f"train/{name}" in logged
    assert "train/attention_gradient_norm" in logged


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("--model.decoder.init_args.hidden=32", "decoder of '.*' has other weights"),
        ("--data.min_count=40", "speaks other words"),
        ("--model.init_from=nowhere", "nowhere"),
    ],
)
def test_what_it_cannot_start_from_is_one_line(
    option, said, run_folder, shapes_cache, tmp_path, capsys
):
    given = [f"--model.init_from={run_folder}", option]
    assert main(runs.arguments(tmp_path / "run", shapes_cache, *given, epochs=1)) == 2
    assert re.search(f"^captioner: .*{said}", capsys.readouterr().err, re.MULTILINE)
