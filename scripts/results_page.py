"""docs/results/*.json → docs/results.md, so that no figure is typed.

python scripts/results_page.py          writes the page
python scripts/results_page.py --check  fails if the page is not what the files say
"""

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

from results_pretrained import (
    SHIPPED,
    TRAINED,
    TRIED,
    helped_section,
    minutes,
    pretrained_section,
    search_section,
    seeds_section,
)
from results_scale import data_section, library_section
from results_speed import speed_section
from scores import figures

from captioner.ground_tables import markdown

DOCS = Path(__file__).parents[1] / "docs"
COLUMNS = (
    *("run", "split", "N", "B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr"),
    *("beam", "length penalty", "tokenizer", "seed", "minutes"),
)
TUNED = "tuned-"  # of the files that hold what became of one soft model
LIBRARY = "library-"  # and a library's captioning, an engine a file
SEEN = {
    "true_captions": "captions true, %",
    "pointing": "pointing, %",
    "discrimination": "paired objects, %",
    "mass": "mass in mask, %",
    "map_entropy": "entropy, nats",
    "map_grad_cam": "Grad-CAM",
}
IN_NATS = ("map_entropy", "map_grad_cam")  # which need two digits


def scores_table(records: dict[str, dict[str, Any]]) -> list[str]:
    """One row a run."""
    lines = [
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    for name, record in records.items():
        scores, decoding = record["scores"], record["decoding"]
        cells = [
            *(name, record["split"], f"{scores['images']:,}"),
            *figures(scores),
            *(decoding["beam_size"], decoding["length_penalty"], scores["tokenizer"]),
            *(record["seed"], f"{record['training_seconds'] / 60:.0f}"),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return lines


def few_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """COCO's reader and configuration on the photos that are at hand."""
    return [
        "## COCO, 1,297 photos",
        "",
        "`configs/coco.yaml` on 1,297 photos of val2014, split by hash: that it trains, not what it",
        "reaches with a hundred times as many.",
        "",
        *scores_table(records),
        "",
        *[
            f"- **{name}**: `{r['command']}`, commit {r['commit']}, {r['machine']}."
            for name, r in records.items()
        ],
        "",
    ]


def tuning_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """One row for everything that began as the same soft model."""
    columns = (
        *("run", "decoder", "B-1", "B-2", "B-3", "B-4", "METEOR", "ROUGE-L", "CIDEr"),
        *("words", "bad endings", "minutes"),
    )
    lines = [
        "## Fine-tuning: hard attention, and training on the score itself",
        "",
        "All begin with the weights of `soft`, Show, Attend and Tell after five epochs, and train",
        "in bfloat16 on the same cached annotations; development split, 1,000 photos, generated",
        "captions, beam 5, length penalty 0.9, PTB tokenizer, seed 1.",
        "The minutes are those of the fine-tuning alone, on",
        "one core of a machine with other work to do. Bad endings: the percentage of captions that",
        "end in an article, a preposition or the like. `hard`: straight-through gradients, without the",
        "doubly stochastic term; `hard-covering` with it, and the expectation more often;",
        "`hard-reinforce` with sampled rewards (`LowerBound`); `self-critical`: 150 steps, the others",
        "an epoch of 188; `-dropout`: with dropout while learning, now `objective.dropout`.",
        "`soft-and-5-epochs-self-critical` begins with `soft-and-5-epochs`. In the hard ones",
        "that were trained on the score only the words learned, not where to look, as they now would.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name, record in records.items():
        scores = record["scores"]
        cells = [
            *(name, record["mechanism"]),
            *figures(scores),
            *(f"{record['mean_length']:.1f}", f"{record['bad_endings']:.1f}"),
            minutes(record),
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [
        *lines,
        "",
        *(f"- **{n}**: `{r['command']}`, commit {r['commit']}." for n, r in records.items()),
        "",
    ]


def attention_section(reports: dict[str, dict[str, Any]]) -> list[str]:
    """What ``captioner ground`` said of trained models, as it says it."""
    lines = [
        "## Is the attention right?",
        "",
        "What the numbers mean: [grounding](grounding.md), [faithfulness](faithfulness.md). Whatever",
        "they are, they stand here. The models are those of the fine-tuning table, trained on Flickr8k;",
        "`self-critical` began as `soft`, not as `soft-and-5-epochs`, so the two are no before and",
        "after. `coco`: 80 pictures of COCO train2017, whose captions speak of more than Flickr8k's.",
        "",
    ]
    for name, report in reports.items():
        title, *rest = markdown(report).splitlines()
        lines += [f"### {name}", "", title.removeprefix("# ") + "."]
        lines += ["#" * 2 + line if line.startswith("## ") else line for line in rest]
        lines += ["", f"`{report['command']}`, commit {report['commit']}, {report['machine']}.", ""]
    return lines


def designs_section(measured: dict[str, Any]) -> list[str]:
    """One row a design, best CIDEr first."""
    columns = (
        *("design", "B-4", "METEOR", "CIDEr", "training captions/s", "captioning images/s"),
        *("parameters", "minutes", "attention"),
    )
    rows = sorted(
        measured["designs"].items(), key=lambda item: item[1]["scores"]["cider"], reverse=True
    )
    lines = [
        "## Designs after the same training",
        "",
        "Every design trained for as many epochs on the same cached annotations",
        "(EfficientNet-Lite2, 7 × 7), in bfloat16, seed 1; development split, 1,000 photos, generated",
        "captions, beam 5, length penalty 0.9, PTB tokenizer. Learning rates and dropouts are those of",
        "the files, tuned for Show, Attend and Tell alone, and a design that learns slowly is judged",
        "before it has learned. Two trainings at a time, each on one core of a machine with other work",
        "to do, and of two commits, the later of which trains nearly twice as fast: the minutes are no",
        "comparison.",
        "",
        f"Speeds: `{measured['command']}`,",
        f"commit {measured['commit']}, {measured['machine']}; medians of {measured['rounds']}",
        "rounds that take every design in turn, from cached annotations: a training step on 32",
        "photos with 5 captions each, and captioning with beam 5, 64 photos at once.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for name, row in rows:
        scores = row["scores"]
        refiner = "" if row["refiner"] == "Projection" else f"{row['refiner']}; "
        cells = [
            name,
            *figures(scores, ("bleu_4", "meteor", "cider")),
            *(f"{row['training_captions_per_second']:.0f}", row["captioning_images_per_second"]),
            *(f"{row['parameters'] / 1e6:.1f} M", f"{row['training_seconds'] / 60:.0f}"),
            f"{refiner}{row['mechanism']}",
        ]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    lines += ["", *(f"- **{n}**: `{r['command']}`, commit {r['commit']}." for n, r in rows), ""]
    return lines


def probe_section(measured: dict[str, Any]) -> list[str]:
    """What a cell's vector still knows, for every choice of feature maps."""
    columns = ("finer maps", "width", "colour", "shape", "size")
    lines = [
        "### What the encoder's levels know",
        "",
        f"Read by a small network that learned from {measured['things']:,} generated things, of",
        "1,000 others, in percent;",
        f"`{measured['command']}`, commit {measured['commit']}, {measured['machine']}.",
        "",
        f"| {' | '.join(columns)} |",
        "|---" * len(columns) + "|",
    ]
    for row in measured["levels"]:
        finer = ", ".join(map(str, row["finer"])) or "none"
        cells = (finer, row["width"], *(row[what] for what in columns[2:]))
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return [*lines, ""]


def mechanisms_section(measured: dict[str, Any]) -> list[str]:
    """For every kind of scenes a row a mechanism; those that masks supervised in tables of their own."""
    rows = measured["mechanisms"]
    lines = [
        "## Mechanisms on generated scenes",
        "",
        "The same small model, data and training, the mechanism exchanged, one seed each:",
        f"`{measured['command']}`.",
        "Two trainings at a time, a core each; in words:",
        "[attention.md](attention.md#what-each-is-good-and-bad-at).",
        "CIDEr is of the development split. The rest is `captioner ground`'s, with 95 % intervals",
        "over scenes: of generated captions the share that is true of its scene; of reference captions",
        "pointing, paired objects (chance is 50), mass in mask, the entropy of the maps in nats and",
        "their correlation with Grad-CAM. Hard attention points with the cell that it chose; its",
        "entropy is that of what it chose by.",
        "",
    ]
    columns = ("mechanism", "parameters", "minutes", "CIDEr", *SEEN.values())
    for supervised in (False, True):
        track = {n: r for n, r in rows.items() if bool(r["supervised_by_masks"]) == supervised}
        for data in dict.fromkeys(data for row in track.values() for data in row["reports"]):
            there = {name: row for name, row in track.items() if data in row["reports"]}
            title = "Attention supervised by masks, a track of its own: " if supervised else ""
            lines += [f"### {title}{data}", "", f"| {' | '.join(columns)} |"]
            lines.append("|---" * len(columns) + "|")
            for name, row in there.items():
                report = row["reports"][data]
                minutes = "–" if row["resumed"] else f"{row['training_seconds'] / 60:.1f}"
                cells = [
                    f"{name}: {row['mechanism']}",
                    f"{row['parameters'] / 1e6:.2f} M",
                    *(minutes, f"{row['cider']:.1f}"),
                    *(_interval(report.get(key), 2 if key in IN_NATS else 1) for key in SEEN),
                ]
                lines.append(f"| {' | '.join(cells)} |")
            lines.append("")
    for name, row in rows.items():
        lines.append(f"- **{name}**: `{row['command']}`, commit {row['commit']}, {row['machine']}.")
        lines += [f"  `{report['command']}`." for report in row["reports"].values()]
    return [*lines, ""]


def _interval(estimate: dict[str, float | None] | None, digits: int) -> str:
    """An estimate with its interval; a dash where there is none."""
    if estimate is None or estimate["value"] is None:
        return "–"
    value, low, high = (f"{estimate[key]:.{digits}f}" for key in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def unpublished() -> list[str]:
    """Which commits named below are not in the history, and which one holds their changes."""
    published = tomllib.loads((DOCS.parent / "scripts" / "published.toml").read_text("utf-8"))
    return [
        f"Commits {', '.join(c for c, holder in published.items() if holder == one)}: published as parts"
        f" of {one}, not by themselves."
        for one in dict.fromkeys(published.values())
    ]


def page(results: Path = DOCS / "results") -> str:
    """The whole page."""
    records = {f.stem: json.loads(f.read_text("utf-8")) for f in sorted(results.glob("*.json"))}
    runs = {
        name: record
        for name, record in records.items()
        if "scores" in record and not name.startswith((SHIPPED, TRAINED, TRIED))
    }
    tuned = {
        name.removeprefix(TUNED): runs.pop(name) for name in list(runs) if name.startswith(TUNED)
    }
    flickr = {n: r for n, r in runs.items() if r["data"] == "flickr8k"}
    shapes = {n: r for n, r in runs.items() if r["data"] == "shapes"}
    coco = {n: r for n, r in runs.items() if r["data"] == "coco"}
    libraries = [record for name, record in records.items() if name.startswith(LIBRARY)]
    reports = {name: record for name, record in records.items() if "regimes" in record}
    lines = [
        "# Results",
        "",
        "Made from the files in [results/](results) by `python scripts/results_page.py`. All",
        "captions are generated, none is teacher-forced. Minutes are those of `captioner fit`, from",
        "reading the files to the last epoch; the first run with an encoder also fills the cache.",
        *unpublished(),
        "",
        *pretrained_section(records),
        *seeds_section(records),
        *helped_section(records),
        *search_section(records),
        "## Flickr8k, development split",
        "",
        *scores_table(flickr),
        "",
        "Published for the *test* split with VGG features (Xu et al. 2015, soft attention):",
        "67 / 44.8 / 29.9 / 19.5, METEOR 18.93. Another split and another encoder: an orientation,",
        "no comparison. The blind model sees the mean of all annotations and so says one sentence of",
        "every picture; its best epoch is chosen, as for the others, by its score on this split.",
        "",
        *[
            f"- **{name}**: `{r['command']}`, commit {r['commit']}, {r['machine']}."
            for name, r in flickr.items()
        ],
        "",
        *tuning_section(tuned),
        *(few_section(coco) if coco else []),
        *designs_section(records["designs"]),
        "## Generated scenes, development split",
        "",
        *scores_table(shapes),
        "",
        *[
            f"- **{name}**: `{r['command']}`, commit {r['commit']}, {r['machine']}; "
            f"{r['true_captions']:.1f} % of the captions are true of their scene, as a parser checks it "
            "against the scene's contents."
            for name, r in shapes.items()
        ],
        "",
        *probe_section(records["probe-encoder"]),
        *(mechanisms_section(records["mechanisms"]) if "mechanisms" in records else []),
        *attention_section(reports),
        *(data_section(records["data"]) if "data" in records else []),
        *(library_section(libraries) if libraries else []),
        *speed_section(records),
    ]
    return "\n".join(lines)


def main() -> int:
    """Writes or checks the page."""
    file = DOCS / "results.md"
    if "--check" in sys.argv:
        return int(file.read_text("utf-8") != page())
    file.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
