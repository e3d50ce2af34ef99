"""Measure what attention is worth, and write docs/does-attention-matter.md, its plot and its figures.

python scripts/attention_worth.py --root DIR --runs runs/worth
python scripts/attention_worth_page.py

The first line trains two small models, one of them with even weights (a finished training is not
repeated), measures them and the bundled models on every tenth development photo of Flickr8k, and writes
docs/results/attention-worth.json and the page. The second line writes the page again.
"""

import argparse
import json
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import attention_worth_adversary as adversary
import numpy as np
import torch
from attention_worth_model import Captions, Model, captions_of
from attention_worth_page import RESULT, write_page
from attention_worth_plans import between_photos, between_words, cascade, maps, own
from torch import Tensor

from captioner.data.readers import read
from captioner.data.records import VAL
from captioner.evaluation.bootstrap import Bootstrap, Ratio
from captioner.evaluation.cider import CiderD
from captioner.evaluation.interventions import Plan, even
from captioner.evaluation.randomisation import rank_correlation
from captioner.files import write_text
from captioner.language.vocabulary import Tokenizer
from captioner.models.decoder import Decoder
from captioner.provenance import provenance
from captioner.resources import bundled_models

EVERY = 10  # of the development photos
REFERENCES = 2  # captions of each photo that are fed in; CIDEr compares with all
SEEDS = (0, 1, 2)
ALIKE = (("show-attend-tell-soft", "show-attend-tell-hard"), ("luong-dot", "luong-dot-critical"))
"""Models of one grid, encoder and vocabulary, which can use each other's weights."""
EPOCHS, CAPTIONS = 3, 2  # of the two trainings
TRAININGS: dict[str, tuple[str, ...]] = {
    "learned": (),
    "uniform": ("--model.decoder.init_args.attention.init_args.distribution=Uniform",),
}


def interventions(
    plan: Plan, captions: Captions, steps: int, donors: Mapping[str, Plan]
) -> Iterator[tuple[str, Plan]]:
    """Yield plans by the kind of intervention, or the model they come from, one for each seed."""
    photos = np.unique(captions.photos, return_inverse=True)[1].tolist()
    yield "even", even(own(plan, captions.lengths, steps), None)
    for seed in SEEDS:
        generator = torch.Generator().manual_seed(seed)
        yield "words", between_words(plan, captions.lengths, steps, generator)
        yield "photos", between_photos(plan, captions.lengths, steps, generator, photos)
    for donor, other in donors.items():
        yield donor, own(other, captions.lengths, steps)


class Measurement:
    """What one model says with its own weights and with others, by photo.

    Args:
        model: the model.
        donors: other models whose weights it can use.
        references: reference captions of each photo, as words.
        cider: scores captions.
    """

    def __init__(
        self,
        model: Model,
        donors: Mapping[str, Model],
        references: Sequence[Sequence[list[str]]],
        cider: CiderD,
    ) -> None:
        self.model, self.photos = model, len(references)
        vocabulary = model.predictor.vocabulary
        ids = [[*map(vocabulary.encode, of_photo[:REFERENCES])] for of_photo in references]
        self.captions = captions_of(ids, model.decoding.max_length)
        self.chosen = self.captions.chosen(vocabulary.words)
        self.numbers = {name: self._by_photo(use) for name, use in self.chosen.items()}
        self.numbers["cider"] = np.ones(self.photos)

        plan = model.plan(self.captions)
        given = {name: donor.plan(self.captions) for name, donor in donors.items()}
        steps = self.captions.tokens.shape[1] - 1
        self.own = self._likelihood(own(plan, self.captions.lengths, steps))
        self.changed: dict[str, list[dict[str, np.ndarray]]] = {}  # kind → of each draw
        for kind, other in interventions(plan, self.captions, steps, given):
            self.changed.setdefault(kind, []).append(self._likelihood(other))

        def score(found: Sequence[Sequence[int]]) -> np.ndarray:
            texts = [[vocabulary.decode(caption)] for caption in found]
            values = [cider(*both)[0] for both in zip(texts, references, strict=True)]
            return 100 * np.array(values)

        found = model.search()
        self.own["cider"] = score(found)
        generated = captions_of([[caption] for caption in found], model.decoding.max_length)
        order = np.argsort(generated.photos)  # the search takes the photos in their own order
        plan = model.plan(generated)
        given = {name: donor.plan(generated) for name, donor in donors.items()}
        draws: dict[str, int] = {}
        for kind, other in interventions(plan, generated, model.decoding.max_length + 1, given):
            number = draws[kind] = draws.get(kind, -1) + 1
            texts = model.search(tuple(part[order] for part in other))
            self.changed[kind][number]["cider"] = score(texts)

    def _by_photo(self, values: np.ndarray) -> np.ndarray:
        return np.bincount(self.captions.photos, values.sum(1), self.photos)

    def _likelihood(self, plan: Plan) -> dict[str, np.ndarray]:
        found = self.model.log_probs(self.captions, plan)
        return {name: self._by_photo(found * use) for name, use in self.chosen.items()}

    def report(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """Return means over tokens or photos, and how the interventions change them."""
        ratios = {name: Ratio(sums, self.numbers[name]) for name, sums in self.own.items()}
        changes = {
            kind: {
                name: changed(bootstrap, [d[name] - base for d in draws], self.numbers[name])
                for name, base in self.own.items()
            }
            for kind, draws in self.changed.items()
        }
        return {
            "mechanism": self.model.predictor.mechanism,
            "decoding": asdict(self.model.decoding),
            "tokens": {name: int(of.sum()) for name, of in self.numbers.items()},
            "own": bootstrap.intervals(ratios),
            "changes": changes,
        }

    def adversary(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """Return how far weights can be from the model's own while the output stays the same."""
        first = self._firsts()
        values = np.zeros((len(first.lengths), first.tokens.shape[1] - 1))
        for rows, tokens in first.parts():
            found = adversary.find(self.model.decoder, self.model.of(first, rows), tokens)
            assert (found.distance <= adversary.EPSILON).all()
            values[rows, : tokens.shape[1] - 1] = found.divergence.numpy()
        use = first.chosen(self.model.predictor.vocabulary.words)
        far = values > adversary.FURTHEST / 2
        measures = {
            f"{name}.{measure}": self._mean(of, chosen, first)
            for name, chosen in use.items()
            for measure, of in (("divergence", values), ("far", 100.0 * far))
        }
        return bootstrap.intervals(measures)

    def randomised(self, bootstrap: Bootstrap) -> dict[str, Any]:
        """Return the rank correlation of the maps with those of a decoder with random layers."""
        first = self._firsts()
        use = first.chosen(self.model.predictor.vocabulary.words)["log_prob"]

        def of(decoder: Decoder) -> list[Tensor]:
            parts = first.parts()
            return [maps(decoder, self.model.of(first, rows), tokens) for rows, tokens in parts]

        learned = of(self.model.decoder)
        draws: dict[str, list[Ratio]] = {}
        for seed in SEEDS:
            for layer, decoder in cascade(self.model.decoder, seed):
                values = np.zeros(use.shape)
                for (rows, _), one, other in zip(first.parts(), learned, of(decoder), strict=True):
                    found = rank_correlation(one, other)
                    values[rows, : found.shape[1]] = found.numpy()
                draws.setdefault(layer, []).append(self._mean(values, use, first))
        return {
            layer: changed(bootstrap, [d.sums for d in of_layer], of_layer[0].numbers)
            for layer, of_layer in draws.items()
        }

    def _firsts(self) -> Captions:
        """Return the first caption of every photo."""
        rows = [row for row, first in enumerate(self.captions.firsts) if first]
        photos, lengths = self.captions.photos, self.captions.lengths
        tokens = self.captions.tokens[rows]
        return Captions(
            [photos[r] for r in rows], [True] * len(rows), tokens, [lengths[r] for r in rows]
        )

    def _mean(self, values: np.ndarray, use: np.ndarray, captions: Captions) -> Ratio:
        sums, numbers = (
            np.bincount(captions.photos, of.sum(1), self.photos) for of in (values * use, use)
        )
        return Ratio(sums, numbers)


def changed(
    bootstrap: Bootstrap, draws: Sequence[np.ndarray], numbers: np.ndarray
) -> dict[str, Any]:
    """Return the mean of several draws with its interval over photos, and the value of each."""
    mean = Ratio(np.mean(draws, 0), numbers)
    each = [round(float(draw.sum() / numbers.sum()), 6) for draw in draws]
    return bootstrap.intervals({"mean": mean})["mean"] | {"draws": each}


def train(root: Path, runs: Path) -> None:
    """Run the trainings that are not finished."""
    for name, options in TRAININGS.items():
        if not (runs / name / "model" / "config.json").is_file():
            arguments = [
                *("fit", "--config", "configs/flickr8k.yaml", "--data.root", str(root)),
                "--model.encoder.init_args.image_size=256",
                "--model.encoder.init_args.weights=FLICKR8K",
                *("--trainer.precision", "bf16-mixed", "--trainer.max_epochs", str(EPOCHS)),
                *("--data.captions_per_image", str(CAPTIONS)),
                *("--trainer.default_root_dir", str(runs / name), "--ckpt_path", "auto", *options),
            ]
            print(shlex.join(["captioner", *arguments]), flush=True)
            subprocess.run([sys.executable, "-m", "captioner", *arguments], check=True)


def measure(
    root: Path, runs: Path | None, every: int = EVERY, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Measure bundled models, by default all, and the two small ones in the folder of runs."""
    records = list(read("flickr8k", root).of_split(VAL))
    chosen, tokenizer = records[::every], Tokenizer()
    texts = {r.image_id: [tokenizer(caption) for caption in r.captions] for r in records}
    references, cider = [texts[r.image_id] for r in chosen], CiderD(texts.values())
    bootstrap = Bootstrap(len(chosen))

    @cache
    def load(name: str) -> Model:
        return Model(name, chosen)

    reports = {}
    for name in names or bundled_models():
        print(name, flush=True)
        others = (other for alike in ALIKE if name in alike for other in alike if other != name)
        donors = {other: load(other) for other in others}
        found = Measurement(load(name), donors, references, cider)
        reports[name] = found.report(bootstrap) | {
            "adversary": found.adversary(bootstrap),
            "randomised": found.randomised(bootstrap),
        }
    result = {
        "split": VAL,
        "photos": len(chosen),
        "every": every,
        "captions_per_photo": REFERENCES,
        "seeds": list(SEEDS),
        "epsilon": adversary.EPSILON,
        "models": reports,
    }
    if runs is not None:
        small = {
            name: Measurement(load(str(runs / name)), {}, references, cider) for name in TRAININGS
        }
        result["training"] = {"epochs": EPOCHS, "captions_per_photo": CAPTIONS}
        result["trained"] = {name: found.report(bootstrap) for name, found in small.items()}
        learned, uniform = small.values()
        result["trained_even"] = {
            name: changed(bootstrap, [uniform.own[name] - sums], learned.numbers[name])
            for name, sums in learned.own.items()
        }
    return result


def merged(earlier: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """Add the figures of some models to those of others on the same photos."""
    for name in ("photos", "every", "captions_per_photo", "seeds", "epsilon"):
        if earlier[name] != found[name]:
            raise SystemExit(
                f"'{RESULT}' has {name} {earlier[name]}, these figures {found[name]}: measure all models"
            )
    both = earlier["models"] | found["models"]
    models = {name: both[name] for name in bundled_models() if name in both}
    seconds = earlier["processor_seconds"] + found["processor_seconds"]
    return earlier | found | {"models": models, "processor_seconds": seconds}


def main() -> None:
    """Train, measure and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, required=True, help="Flickr8k as distributed")
    parser.add_argument("--runs", type=Path, help="folder for the trainings; none without it")
    parser.add_argument("--every", type=int, default=EVERY, help="use every N-th photo")
    only = "measure these models, and keep the figures of the others in the file"
    parser.add_argument("--models", nargs="+", choices=bundled_models(), default=[], help=only)
    options = parser.parse_args()
    if options.runs is not None:
        train(options.root, options.runs)
    command = shlex.join(["python", *sys.argv])
    began = time.process_time()
    found = measure(options.root, options.runs, options.every, options.models)
    found["processor_seconds"] = round(time.process_time() - began)
    if options.models and RESULT.exists():
        found = merged(json.loads(RESULT.read_text("utf-8")), found)
    found |= {"command": command, **provenance()}
    write_text(RESULT, json.dumps(found, indent=2) + "\n")
    write_page()


if __name__ == "__main__":
    main()
