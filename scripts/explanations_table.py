"""Compare methods of explanation on the bundled models: do they find the object, do words depend on it?

python scripts/explanations_table.py --root flickr8k --entities flickr30k_entities --limit 40 \
    --output docs/results/explanations.json
python scripts/explanations_table.py --page docs/results/explanations.json

The first line measures the first reference caption of each of the first photos of Flickr8k's
development split: pointing at the boxes of Flickr30k Entities, deletion, insertion, and the
randomisation check, for every method and bundled model, with intervals over photos. The second line
writes the table into docs/overlays.md.
"""

import argparse
import json
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch

from captioner.data import entity_images, readers
from captioner.data.records import VAL
from captioner.evaluation.attention_maps import batches
from captioner.evaluation.bootstrap import Bootstrap, Ratio
from captioner.evaluation.deletion import word_drops
from captioner.evaluation.faithfulness import DeletionCurves, deterministic
from captioner.evaluation.grounding import GroundingData
from captioner.evaluation.image_statistics import ImageStatistics
from captioner.evaluation.localisation import normalised
from captioner.evaluation.randomisation import randomised, rank_correlation
from captioner.files import write_text
from captioner.language.vocabulary import UNK, Tokenizer
from captioner.markdown import interval, table
from captioner.predict.explanations import METHODS, explain
from captioner.predict.load import load_own
from captioner.provenance import provenance
from captioner.resources import bundled_models

MEASURES = {
    "pointing": "pointing, %",
    "content.most_over_random": "deletion, nats",
    "content.insertion_most_over_random": "insertion, nats",
    "content.rank_correlation": "rank correlation",
}
DIGITS = {"pointing": 1}
DRAWS = 1  # random orders of the regions
PAGE = Path(__file__).parents[1] / "docs" / "overlays.md"
MARK = "<!-- table -->"


def measure(name: str, data: Any) -> dict[str, Any]:
    """Return the scores of every method for one model, and differences from attention."""
    images = len(data.images)
    torch.set_num_threads(1)
    model = load_own(name, "cpu")
    decoder = deterministic(model.captioner.decoder)
    other: Any = randomised(decoder)
    methods = [m for m in METHODS if m != "rollout" or "Transformer" in model.mechanism]
    maps = {method: GroundingData(model.captioner, data, "forced") for method in methods}
    curves = {method: DeletionCurves(model, data.images, "forced", method) for method in methods}
    seconds = dict.fromkeys(methods, 0.0)
    for batch in batches(model.captioner, data.images, 1, []):
        (index,), annotations = batch.indices, batch.annotations
        words = Tokenizer()(data.images[index].captions[0])
        ids = model.vocabulary.encode(words)
        found, changed = {}, {}
        for method in methods:
            start = time.process_time()
            found[method] = explain(decoder, annotations, ids, method)
            seconds[method] += time.process_time() - start
            changed[method] = explain(other, annotations, ids, method)
        copies = annotations.map(lambda x: x.repeat(len(methods), 1, 1))
        given: dict[str, Any] = {"draws": DRAWS, "seed": batch.seed, "maps": list(found.values())}
        drops = word_drops(decoder, copies, [ids] * len(methods), **given)
        for method, drop in zip(methods, drops, strict=True):
            same = rank_correlation(found[method], changed[method]).numpy()
            curves[method].add_caption(index, model.vocabulary.decode(ids), drop, same)
            positive = normalised(found[method].clamp(min=0).numpy())
            maps[method].grid = annotations.grid
            maps[method].images.append(index)
            unknown = [token == UNK for token in ids]
            maps[method].add_caption(index, words, {"model": positive}, unknown)
        print(f"{name}: photo {index + 1}", file=sys.stderr, flush=True)
    ratios = {m: _ratios([*maps[m].report(), *curves[m].report()]) for m in methods}
    bootstrap = Bootstrap(images)
    scores: dict[str, Any] = {}
    for method, of in ratios.items():
        scores[method] = bootstrap.intervals({key: of[key] for key in MEASURES})
        scores[method]["seconds"] = round(seconds[method] / images, 3)
        lead = {key: bootstrap.difference(of[key], ratios["attention"][key]) for key in MEASURES}
        scores[method]["over_attention"] = {
            key: {k: round(v, 6) for k, v in vars(estimate).items()}
            for key, estimate in lead.items()
        }
    mentions = len(maps["attention"].mentions)
    return {
        "mechanism": model.mechanism,
        "grid": list(maps["attention"].grid),
        "images": images,
        "mentions": mentions,
        "scores": scores,
    }


def _ratios(parts: Sequence[Any]) -> dict[str, Ratio]:
    """Return each measure of reports as a statistic over images in their order."""
    statistics: list[ImageStatistics] = [*parts[1], *parts[3]]
    names = {name for image in statistics for name in image.ratios}
    totals = {}
    for name in names & set(MEASURES):
        pairs = np.array([image.ratios[name] for image in statistics if name in image.ratios])
        totals[name] = Ratio(*pairs.T)
    return totals


def page(record: dict[str, Any]) -> str:
    """Return the table as Markdown, with a row for each model and method."""
    rows = []
    for name, model in record["models"].items():
        for method, scores in model["scores"].items():
            cells = []
            for key in MEASURES:
                digits = DIGITS.get(key, 3)
                cell, lead = interval(scores[key], digits), scores["over_attention"][key]
                differs = method != "attention" and (lead["low"] > 0 or lead["high"] < 0)
                cells.append(f"**{cell}**" if differs else cell)
            rows.append([name, method, *cells, f"{scores['seconds']:.2f}"])
    models = record["models"].values()
    photos, mentions = (max(model[key] for model in models) for key in ("images", "mentions"))
    machine = record["machine"].replace(" 1 threads", " 1 thread")
    conditions = (
        f"{photos} photos with {mentions} phrases in boxes. Bold: the interval of the paired difference "
        f"from attention excludes 0. Commits {', '.join(record['commits'])}. The last was "
        f"measured on {machine}."
    )
    head = ["model", "method", *MEASURES.values(), "seconds a photo"]
    return "\n".join([*table(head, rows), "", conditions])


def main(arguments: list[str] | None = None) -> None:
    """Measure, or write the table of a record into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", metavar="DIR", help="folder of Flickr8k")
    parser.add_argument("--entities", type=Path, metavar="DIR", help="Flickr30k Entities")
    parser.add_argument("--limit", type=int, default=100, help="number of photos")
    parser.add_argument("--jobs", type=int, default=2, help="models measured at the same time")
    only = "measure these models, and keep the figures of the others in the file"
    parser.add_argument("--models", nargs="+", choices=bundled_models(), default=[], help=only)
    parser.add_argument("--output", type=Path, help="docs/results/explanations.json")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the table of this record")
    options = parser.parse_args(arguments)
    if options.page is not None:
        before, _, rest = PAGE.read_text("utf-8").partition(MARK)
        _, _, after = rest.partition(MARK)
        record = json.loads(options.page.read_text("utf-8"))
        write_text(PAGE, f"{before}{MARK}\n\n{page(record)}\n\n{MARK}{after}")
        return
    if options.root is None or options.entities is None or options.output is None:
        parser.error("expected --root, --entities and --output, or --page")
    records = readers.read("flickr8k", options.root).of_split(VAL)[: options.limit]
    data = entity_images.read(options.entities, records)
    data = replace(data, images=tuple(replace(i, captions=i.captions[:1]) for i in data.images))
    names = options.models or list(bundled_models())
    jobs = (joblib.delayed(measure)(name, data) for name in names)
    found = dict(zip(names, joblib.Parallel(options.jobs)(jobs), strict=True))
    commits = [provenance()["commit"]]
    if options.models:
        earlier = json.loads(options.output.read_text("utf-8"))
        found, commits = earlier["models"] | found, [*earlier["commits"], *commits]
    record = {
        "command": shlex.join(["python", *sys.argv]),
        "data": f"flickr8k, split val, first photos and captions, boxes of {data.source}",
        "settings": "see captioner.predict.explanations and captioner.evaluation.deletion",
        "models": {name: found[name] for name in bundled_models() if name in found},
        "commits": list(dict.fromkeys(commits)),
        **provenance(),
    }
    write_text(options.output, json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
