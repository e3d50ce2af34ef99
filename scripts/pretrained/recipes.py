"""The trainings behind each bundled model, in order: ``captioner fit`` with these options."""

from dataclasses import dataclass, replace

from captioner.decoding import Decoding


@dataclass(frozen=True)
class Step:
    """One training.

    Attributes:
        options: of ``captioner fit``, beside those that all trainings have; ``{runs}`` stands for the
            folder of the runs.
        encoder: whether the encoder that it fine-tunes becomes the one that the package brings.
    """

    options: tuple[str, ...]
    encoder: bool = False


SEARCH = Decoding(beam_size=5, length_penalty=0.9, no_repeat=2)


@dataclass(frozen=True)
class Recipe:
    """How a bundled model comes about.

    Attributes:
        steps: names in ``STEPS``; the last one's best epoch is the model.
        averaged: the steps of which the model has the mean of the weights, where not the last one's.
        title: what its card calls it.
        paper: where the design comes from.
        decoding: how captions are searched for, tuned on the development split. That no two words follow
            each other twice mends what likelihood alone leaves, "a man and a man", and every score.
        seeded: the step that is trained again with other seeds, to know what chance does.
    """

    steps: tuple[str, ...]
    title: str
    paper: str
    decoding: Decoding = SEARCH
    seeded: str | None = None
    averaged: tuple[str, ...] = ()

    @property
    def ends(self) -> tuple[str, ...]:
        """The steps that the model is made from."""
        return self.averaged or self.steps[-1:]


# The decoder's products run in bfloat16. Two processes of one thread each are faster on two cores than
# one process of two threads, and learn the same.
COMMON = (
    *("--config", "configs/flickr8k.yaml", "--trainer.precision", "bf16-mixed"),
    *("--trainer.devices", "2", "--trainer.strategy", "ddp", "--ckpt_path", "auto"),
)

# What all see, and what those see that come after the encoder was fine-tuned. 256 is near to the 260
# pixels that the CNN was trained with, and more regions than 7 × 7.
SIDE = 256
SIZE = ("--model.encoder.init_args.image_size", str(SIDE))
BUNDLED = (*SIZE, "--model.encoder.init_args.weights", "FLICKR8K")
# Every epoch sees other parts of the photos.
CROPS = ("--data.cache", "images", "--data.crop", "0.75")
# The score itself, in place of the likelihood: captions of the model's own, without repetitions as they
# will be written, and CIDEr-D's opinion of them. How good such a training becomes is much a matter of
# chance; the mean of the weights of several is not (Wortsman et al. 2022, arXiv 2203.05482).
CRITICAL = (
    *(*CROPS, "--model.objective", "SelfCritical", "--model.objective.no_repeat", "2"),
    *("--model.objective.dropout", "true", "--model.decoding.no_repeat", "2"),
    *("--model.learning_rate", "3e-4", "--trainer.max_epochs", "1"),
)
SEEDS = (1, 2, 3, 4, 5)


def _design(name: str) -> tuple[str, str]:
    return ("--model", f"configs/model/{name}.yaml")


STEPS = {
    "frozen": Step((*SIZE, "--trainer.max_epochs", "6")),
    "fine-tuned": Step(
        (
            *(*_design("fine-tuned"), *SIZE, *CROPS, "--model.init_from", "{runs}/frozen"),
            *("--model.learning_rate", "6e-4", "--model.encoder_learning_rate", "1e-4"),
            *("--trainer.max_epochs", "7"),
        ),
        encoder=True,
    ),
    **{
        f"critical-{seed}": Step(
            (
                *(*BUNDLED, *CRITICAL, "--model.init_from", "show-attend-tell-soft"),
                *("--seed_everything", str(seed)),
            )
        )
        for seed in SEEDS
    },
    "hard": Step(
        (
            *(*_design("show-attend-tell-hard"), *BUNDLED, *CROPS),
            *("--model.init_from", "show-attend-tell-soft"),
            "--model.decoder.attention.distribution.gradient=straight_through",
            # It writes as it learned, looking where it draws.
            "--model.decoder.attention.distribution.test_time=sample",
            *("--model.decoding.samples", "8", "--model.decoding.no_repeat", "2"),
            *("--model.objective", "Likelihood", "--model.objective.doubly_stochastic", "0.5"),
            *("--model.objective.label_smoothing", "0.1", "--model.learning_rate", "6e-4"),
            *("--trainer.max_epochs", "5"),
        )
    ),
    "luong": Step((*_design("luong-dot"), *BUNDLED, "--trainer.max_epochs", "8")),
    "transformer": Step((*_design("transformer"), *BUNDLED, *CROPS, "--trainer.max_epochs", "8")),
}

_PAPER = "Xu et al. 2015 (arXiv 1502.03044)"
RECIPES = {
    "show-attend-tell-soft": Recipe(
        ("frozen", "fine-tuned"),
        "Show, Attend and Tell with soft attention",
        _PAPER,
        seeded="fine-tuned",
    ),
    "show-attend-tell-hard": Recipe(
        ("frozen", "fine-tuned", "hard"),
        "Show, Attend and Tell with hard attention, by straight-through gradients",
        _PAPER,
        # Of its captions the shorter ones score better on the development split.
        replace(SEARCH, length_penalty=0.7, samples=8),
        seeded="hard",
    ),
    "show-attend-tell-critical": Recipe(
        ("frozen", "fine-tuned", *(f"critical-{seed}" for seed in SEEDS)),
        "Show, Attend and Tell with soft attention, fine-tuned on its captions' CIDEr-D",
        f"{_PAPER} and Rennie et al. 2017 (arXiv 1612.00563)",
        # It writes briefly already, and what a wide beam finds is better, which is seldom so.
        replace(SEARCH, beam_size=15, length_penalty=1.2),
        averaged=tuple(f"critical-{seed}" for seed in SEEDS),
    ),
    "luong-dot": Recipe(
        ("frozen", "fine-tuned", "luong"),
        "Global attention by dot products",
        "Luong, Pham and Manning 2015 (arXiv 1508.04025)",
    ),
    "transformer": Recipe(
        ("frozen", "fine-tuned", "transformer"),
        "A Transformer decoder",
        "Vaswani et al. 2017 (arXiv 1706.03762)",
    ),
}
