"""The bundled models' part of the page of results: dev scores, and the trainings that led there."""

import re
from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import Any

from scores import METRICS, figures

SHIPPED, TRAINED, TRIED, SEARCHED = "pretrained-", "training-", "tried-", "decoding-"
# Xu et al. 2015 (arXiv 1502.03044), table 1; they give neither ROUGE-L nor CIDEr.
PUBLISHED = {
    "Xu et al. 2015, soft": (67, 44.8, 29.9, 19.5, 18.93),
    "Xu et al. 2015, hard": (67, 45.7, 31.4, 21.3, 20.30),
}


def pretrained_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """The models as they are shipped, and under them every training by itself."""
    shipped = {n.removeprefix(SHIPPED): r for n, r in records.items() if n.startswith(SHIPPED)}
    trained = {n.removeprefix(TRAINED): r for n, r in records.items() if n.startswith(TRAINED)}
    columns = (
        *("model", "split", "N", "B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr"),
        *("words", "beam", "length penalty", "no repeat", "paths", "tokenizer", "seed", "minutes"),
        "MB",
    )
    lines = [
        "## Bundled models",
        "",
        "As they are shipped, in half precision, asked through `captioner.load` with the JPEG files.",
        "The minutes are those of all trainings that lead to a model; the first two are shared by all.",
        "Paths: over how many sampled paths of locations hard attention averages; 1 with hard attention",
        "is the most probable location.",
        "The published figures are of the *test* split, with VGG features: an orientation, no",
        "comparison.",
        "",
    ]
    rows = []
    for name, record in shipped.items():
        seconds = sum(trained[step]["training_seconds"] for step in record["steps"])
        seeds = sorted({trained[step]["seed"] for step in record["steps"]})
        cells = [
            *(name, record["split"], f"{record['scores']['images']:,}", *figures(record["scores"])),
            *(
                f"{record['mean_length']:.1f}",
                *_search(record),
                _range(seeds),
                f"{seconds / 60:.0f}",
            ),
            f"{record['bytes'] / 1e6:.1f}",
        ]
        rows.append(cells)
    rows += [[name, "test", "1,000", *values, *["–"] * 11] for name, values in PUBLISHED.items()]
    lines += [
        *_table(columns, rows),
        "",
        *[
            f"- **{name}**: `{r['command']}`, commit {r['commit']}, {r['machine']}; trained by "
            f"{', then '.join(r['steps'])}{_averaged(r)}."
            for name, r in shipped.items()
        ],
        "",
        "Every training, each scored with the weights of its best epoch:",
        "",
    ]
    training_columns = (
        *("training", "B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr", "words", "beam"),
        *("length penalty", "no repeat", "paths", "tokenizer", "seed", "epoch", "minutes"),
    )
    rows = [
        [
            *(name, *figures(record["scores"]), f"{record['mean_length']:.1f}", *_search(record)),
            *(record["seed"], record["epoch"], minutes(record)),
        ]
        for name, record in trained.items()
    ]
    return [
        *lines,
        *_table(training_columns, rows),
        "",
        *[
            f"- **{name}**: `{r['command']}`, commit {r['commit']}, {r['machine']}."
            for name, r in trained.items()
        ],
        "",
    ]


def seeds_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """What another seed makes of the same recipe."""
    columns = ("model", "seed", "B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr", "words")
    rows = []
    for name, first in records.items():
        if not name.startswith(SHIPPED):
            continue
        last = f"{TRAINED}{first['steps'][-1]}"
        again = [r for n, r in records.items() if n.startswith(f"{last}-seed-")]
        if not again:
            continue
        found = {records[last]["seed"]: first} | {record["seed"]: record for record in again}
        model = name.removeprefix(SHIPPED)
        for seed, record in sorted(found.items()):
            rows.append([model, seed, *figures(record["scores"]), f"{record['mean_length']:.1f}"])
        table = [[record["scores"][metric] for metric in METRICS] for record in found.values()]
        spread = [
            "–" if None in column else f"{mean(column):.1f} ± {stdev(column):.1f}"
            for column in zip(*table, strict=True)
        ]
        rows.append([model, f"mean of {len(found)}", *spread, "–"])
    if not rows:
        return []
    return [
        "### Other seeds",
        "",
        "The last training of the headline models again, from other seeds, scored with the same search;",
        "± is one standard deviation. Seed 1 is the model as shipped, in half precision, the others are",
        "as trained.",
        "",
        *_table(columns, rows),
        "",
    ]


def helped_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """What the scores of the default came from, step by step."""

    def cider(record: dict[str, Any]) -> float:
        return float(record["scores"]["cider"])

    def bleu(record: dict[str, Any]) -> float:
        return float(record["scores"]["bleu_4"])

    twelve, frozen, tuned = (
        cider(records[name])
        for name in ("show-attend-tell", f"{TRAINED}frozen", f"{TRAINED}fine-tuned")
    )
    final = cider(records[f"{SHIPPED}show-attend-tell-soft"])
    critical = records[f"{SHIPPED}show-attend-tell-critical"]
    each, plain = (
        _spread([cider(r) for name, r in sorted(records.items()) if re.fullmatch(names, name)])
        for names in (f"{TRAINED}critical-\\d", f"{TRAINED}critical-without-dropout.*")
    )
    longer = records[f"{TRIED}critical-four-epochs"]
    before, after = (
        records[f"{TRAINED}{name}"] for name in ("hard-without-crops", "hard-critical")
    )
    return [
        "### What helped the default, in CIDEr",
        "",
        f"A frozen CNN: {twelve:.1f} after twelve epochs at 224 pixels, {frozen:.1f} after six at 256,",
        "of which the fifth was the best. The CNN's last 24 layers learning too, on crops of the",
        f"photos: {tuned - frozen:+.1f}. No two words following each other twice in a caption: "
        f"{final - tuned:+.1f}. The beam and",
        "the length penalty make little difference.",
        "",
        "An epoch on the score itself, on crops, makes `show-attend-tell-critical` of it, which is the",
        "mean of the weights of several, and searches with a beam of "
        f"{critical['decoding']['beam_size']}: {cider(critical) - final:+.1f}. Each by itself, with the",
        f"default's search, has {each}; without dropout and at a third of the learning rate {plain}.",
        "What ships leaves less to the luck of a seed.",
        "",
        f"What did not help: four epochs on the score, of which the second is the best one (CIDEr "
        f"{cider(longer):.1f}:",
        f"`{longer['command']}`, commit {longer['commit']});",
        "smaller crops in it (`critical-half-crops`: BLEU up, CIDEr no better);",
        "a Transformer in place of the LSTM. Hard attention fine-tuned on the score (`hard-critical`,",
        f"after `hard-without-crops`) has BLEU-4 {bleu(after):.1f} instead of {bleu(before):.1f}, but",
        f"CIDEr {cider(after):.1f} instead of {cider(before):.1f}, and its sentences, by eye, make less",
        "sense: what is shipped was trained by likelihood.",
        "",
    ]


def _spread(values: Sequence[float]) -> str:
    middle, spread = mean(values), stdev(values)
    return f"{middle:.1f} ± {spread:.1f} ({len(values)} seeds, the best {max(values):.1f})"


def _table(columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> list[str]:
    """Lines of Markdown."""
    lines = [f"| {' | '.join(map(str, row))} |" for row in (columns, *rows)]
    return [lines[0], "|---" * len(columns) + "|", *lines[1:]]


def _averaged(record: dict[str, Any]) -> str:
    averaged = record.get("averaged", [])
    return f", with the mean of the weights of the last {len(averaged)}" if averaged else ""


def _range(numbers: Sequence[int]) -> str:
    whole = len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def minutes(record: dict[str, Any]) -> str:
    """Of training; a dash for a run that was interrupted, which knows its last stretch alone."""
    if not record.get("training_seconds") or record.get("resumed"):
        return "–"
    return f"{record['training_seconds'] / 60:.0f}"


def _search(record: dict[str, Any]) -> list[Any]:
    decoding = record["decoding"]
    options = (
        decoding[option] for option in ("beam_size", "length_penalty", "no_repeat", "samples")
    )
    return [*options, record["scores"]["tokenizer"]]


def search_section(records: Mapping[str, dict[str, Any]]) -> list[str]:
    """The scores of models by how their captions are searched for."""
    columns = (
        *("beam", "length penalty", "no repeat", "paths", "tokenizer", "B-1", "B-2", "B-3", "B-4"),
        *("METEOR", "ROUGE-L", "CIDEr", "words", "bad endings"),
    )
    lines = [
        "### How captions are searched for",
        "",
        "Development split, one option at a time another than the model's own. No repeat: no run of so",
        "many words is written twice.",
        "",
    ]
    for name, record in records.items():
        if not name.startswith(SEARCHED):
            continue
        rows = [
            [
                *_search(row),
                *figures(row["scores"]),
                f"{row['mean_length']:.1f}",
                f"{row['bad_endings']:.1f}",
            ]
            for row in record["searches"]
        ]
        source = f"`{record['command']}`, commit {record['commit']}, {record['machine']}."
        lines += [f"`{record['model']}`:", "", *_table(columns, rows), "", source, ""]
    return lines
