"""The classic sanity check of an attention: learn to reverse strings of digits, and look at the map.

python scripts/reverse_sequence.py --score General --output map.png
python scripts/reverse_sequence.py --all --output maps/

A bidirectional LSTM reads the digits, a decoder of this package writes them backwards. To write digit
t it must look at digit T - 1 - t: the map shows the anti-diagonal. ``LocalM`` looks at t instead, and
``Location`` does not see what is there.
"""

import argparse
import inspect
import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from captioner.decoding import Decoding, search
from captioner.models import Annotations
from captioner.models import attention as attention_parts
from captioner.models.registry import build, names
from captioner.text import END, START, UNK
from captioner.training.objectives import Likelihood

FIRST = max(END, START, UNK) + 1  # the id of digit 0
DIGITS = 10


class Reverser(nn.Module):
    """Reads digits, writes them backwards.

    Args:
        decoder: LSTMDecoder or LuongDecoder.
        score: a score's name.
        distribution: a distribution's name.
        length: digits in a string.
        width: of everything.
    """

    def __init__(
        self, decoder: str, score: str, distribution: str, length: int, width: int = 64
    ) -> None:
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(DIGITS, width)
        self.reader = nn.LSTM(width, width // 2, batch_first=True, bidirectional=True)
        parts = {"score": score, "distribution": distribution}
        sizes = {"positions": length, "dim": width, "window": 2}
        attention = {
            "class_path": "Attention",
            "init_args": {kind: _sized(name, sizes) for kind, name in parts.items()},
        }
        self.decoder = build(
            "decoder",
            {
                "class_path": decoder,
                "init_args": {
                    "attention": attention,
                    "hidden": width,
                    "embedding": width,
                    "dropout": 0.0,
                },
            },
            vocab_size=FIRST + DIGITS,
            annotation_dim=width,
        )

    def read(self, digits: Tensor) -> Annotations:
        """One annotation per digit: what it is, plus what is around it."""
        embedded = self.embedding(digits)
        return Annotations(embedded + self.reader(embedded)[0], (1, self.length))


def _sized(name: str, sizes: dict[str, int]) -> dict[str, Any]:
    """The part with those of the sizes that it knows."""
    known = inspect.signature(getattr(attention_parts, name)).parameters
    return {"class_path": name, "init_args": {k: v for k, v in sizes.items() if k in known}}


def strings(count: int, length: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Digits (B, T), and as ids ``<start> reversed <end>`` (B, T + 2)."""
    digits = torch.randint(DIGITS, (count, length), generator=generator)
    ends = torch.full((count, 1), START), torch.full((count, 1), END)
    return digits, torch.cat([ends[0], digits.flip(1) + FIRST, ends[1]], 1)


@dataclass(frozen=True)
class Outcome:
    """How well a mechanism reverses, on strings it has not seen.

    Attributes:
        exact: percent of strings without a mistake, greedy search.
        on_the_anti_diagonal: percent of the digits whose largest weight is at the right place.
        steps: of training.
        seconds: of training.
    """

    exact: float
    on_the_anti_diagonal: float
    steps: int
    seconds: float


def train(model: Reverser, seconds: float, seed: int) -> tuple[int, float]:
    """Trains until the last strings are almost all right, or the time is over."""
    generator = torch.Generator().manual_seed(seed)
    objective = Likelihood(doubly_stochastic=0.0, label_smoothing=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    began, steps, recent = time.perf_counter(), 0, 1.0
    while time.perf_counter() - began < seconds and recent > 2e-3:
        digits, ids = strings(128, model.length, generator)
        decoded = model.decoder(model.read(digits), ids[:, None, :-1])
        loss = objective(decoded, ids[:, None, 1:]).total
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent = 0.98 * recent + 0.02 * float(loss.detach())
        steps += 1
    return steps, time.perf_counter() - began


@torch.inference_mode()
def examine(model: Reverser, seed: int, count: int = 1000) -> tuple[float, float, np.ndarray]:
    """Exact strings and right places in percent, and the mean map (T, L)."""
    model.eval()
    digits, ids = strings(count, model.length, torch.Generator().manual_seed(seed))
    found = search(model.decoder, model.read(digits), Decoding(1, max_length=model.length + 5))
    exact = sum(f[0].tokens == want[1:-1].tolist() for f, want in zip(found, ids, strict=True))
    forced = model.decoder(model.read(digits), ids[:, :-1])
    weights = forced.weights[:, : model.length]  # the end looks nowhere in particular
    places = torch.arange(model.length - 1, -1, -1)
    right = (weights.argmax(-1) == places).float().mean()
    return 100 * exact / count, 100 * float(right), weights.mean(0).numpy()


def run(decoder: str, score: str, law: str, length: int, seconds: float, file: Path) -> Outcome:
    """Trains, examines, draws."""
    torch.manual_seed(1)
    model = Reverser(decoder, score, law, length)
    steps, took = train(model, seconds, seed=1)
    exact, right, mean = examine(model, seed=2)
    grey = Image.fromarray((255 * np.clip(mean, 0, 1)).astype(np.uint8))
    grey.resize((24 * length, 24 * length), Image.Resampling.NEAREST).save(file)
    return Outcome(exact, right, steps, round(took, 1))


def main() -> None:
    """One mechanism, or all scores with ``Soft``."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--decoder", default="LuongDecoder", choices=names("decoder"))
    parser.add_argument("--score", default="General", choices=names("score"))
    parser.add_argument("--distribution", default="Soft", choices=names("distribution"))
    parser.add_argument("--all", action="store_true", help="every score; --output is a folder")
    parser.add_argument("--length", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=85.0, help="at most, of training")
    parser.add_argument("--output", type=Path, required=True, help="PNG of the mean map")
    options = parser.parse_args()
    scores = names("score") if options.all else [options.score]
    if options.all:
        options.output.mkdir(parents=True, exist_ok=True)
    for score in scores:
        file = options.output / f"{score}.png" if options.all else options.output
        law = options.distribution
        outcome = run(options.decoder, score, law, options.length, options.seconds, file)
        print(
            json.dumps(
                {"decoder": options.decoder, "score": score, "distribution": law, **asdict(outcome)}
            ),
            flush=True,
        )


if __name__ == "__main__":
    main()
