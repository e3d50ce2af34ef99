"""Write docs/results.md from docs/results/*.json, so that no figure on the page is typed by hand.

python scripts/results_page.py          writes the page
python scripts/results_page.py --check  fails if the page differs from what the files say

The text of the page is scripts/results.md.jinja; a method of ``Tables`` makes each table.
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from results_speed import SpeedTables
from results_tables import (
    METRICS,
    Record,
    figures,
    link,
    minutes,
    number,
    source,
    spread,
    table,
    template,
)

from captioner.cli.ground_tables import ALL_METRICS as BOX_METRICS
from captioner.cli.ground_tables import BLIND
from captioner.cli.ground_tables import METRICS as GROUNDING
from captioner.evaluation.grounding import MAPS
from captioner.markdown import MISSING, interval
from captioner.resources import DEFAULT_MODEL

SCRIPTS = Path(__file__).parent
DOCS = SCRIPTS.parent / "docs"
HEADLINE = ("bleu_4", "meteor", "cider")
BASELINES = (*BLIND, "oracle")
# Xu et al. 2015 (arXiv 1502.03044), table 1; the paper reports neither ROUGE-L nor CIDEr.
PUBLISHED = {
    "Xu et al. 2015, soft": (67, 44.8, 29.9, 19.5, 18.93),
    "Xu et al. 2015, hard": (67, 45.7, 31.4, 21.3, 20.30),
}
STEPS = {
    "image-blind": "the decoder sees only the mean annotation vector",
    "show-attend-tell": "frozen CNN at 224 pixels, 12 epochs (`configs/flickr8k.yaml`)",
    "training-frozen": "frozen CNN at 256 pixels, 6 epochs",
    "training-fine-tuned": "then the last 24 CNN layers train on random crops, 7 epochs",
    "training-luong": "keys of a Vision Transformer, values of that CNN, more data",
    "training-boxes-1": "then boxes, 3 epochs, one of two runs; no repeated bigrams",
    "pretrained-luong-dot": "then `add_keys` and crops from the mean of both; mean of two (`luong-dot`)",
    "pretrained-luong-dot-critical": "without boxes, but self-critical training, 5 seeds averaged",
}


class Tables(SpeedTables):
    """Every table of the page, by the name that the template calls it."""

    def of(self, name: str) -> Record:
        """Return the content of a file of results."""
        return self.records[name]

    def matching(self, pattern: str) -> dict[str, Record]:
        """Return the files whose name begins with a pattern, by the rest of the name."""
        found = {name: re.match(pattern, name) for name in self.records}
        return {n[match.end() :]: self.records[n] for n, match in found.items() if match}

    def named(self, pattern: str) -> list[Record]:
        """Return the files whose name begins with a pattern."""
        return list(self.matching(pattern).values())

    def bundled(self) -> str:
        """Scores of the bundled models, with published ones."""
        rows: list[list[Any]] = []
        for name, record in self.matching("pretrained-").items():
            seconds = sum(self.of(f"training-{s}")["training_seconds"] for s in record["steps"])
            search = [record["decoding"][k] for k in ("beam_size", "length_penalty", "samples")]
            coco = number(record["coco_scores"]["cider"])
            scores = [*figures(record["scores"]), coco, number(record["mean_length"])]
            size = number(record["bytes"] / 1e6)
            linked = link(name, f"pretrained-{name}")
            rows.append([linked, *scores, *search, f"{seconds / 60:.0f}", size])
        rows += [[name, *values, *[MISSING] * 9] for name, values in PUBLISHED.items()]
        columns = " | ".join(METRICS.values())
        head = (
            f"model | {columns} | COCO CIDEr | words | beam | length penalty | paths | minutes | MB"
        )
        return table(head, rows)

    def helping(self) -> list[Record]:
        """Return the records behind ``helped``."""
        return [*(self.of(name) for name in STEPS), *self.named("training-critical-")]

    def helped(self) -> str:
        """The steps that led to the default model and to its self-critical version."""
        rows = [
            [link(text, name), *figures(self.of(name)["scores"], HEADLINE), minutes(self.of(name))]
            for name, text in STEPS.items()
        ]
        one = self.named("training-critical-")
        each = [spread([record["scores"][metric] for record in one]) for metric in HEADLINE]
        rows.append([f"each of these {len(one)} seeds alone", *each, minutes(one[0])])
        return table("step | BLEU-4 | METEOR | CIDEr | minutes", rows)

    def mechanisms(self, supervised: bool) -> str:
        """One row per mechanism on generated scenes, of those with or without supervised attention."""
        rows = self.of("mechanisms")["mechanisms"].items()
        return mechanism_table(
            {n: r for n, r in rows if bool(r["supervised_by_masks"]) == supervised}
        )

    def designs(self) -> str:
        """One row per design, in the order of mechanisms_table.toml."""
        rows = []
        for name, row in self.of("designs")["mechanisms"].items():
            [report] = row["reports"].values()
            rows.append(
                [
                    *(f"{name}: {row['mechanism']}", f"{row['parameters'] / 1e6:.1f} M"),
                    number(row["step_milliseconds"], 0),
                    *figures(row["scores"], HEADLINE),
                    *(interval(report[metric]) for metric in GROUNDING),
                    interval(report["map_entropy"], 2),
                ]
            )
        head = "design | parameters | step, ms | BLEU-4 | METEOR | CIDEr"
        return table(f"{head} | {' | '.join(GROUNDING.values())} | entropy, nats", rows)

    def grounding(self) -> str:
        """Attention against object masks: a row for each model and kind of captions."""
        rows = [
            [
                *(link(name, f"grounding-{name}"), captions),
                found["coverage"]["mentions_with_mask"],
                *(interval(found["scores"]["model"][key]) for key in GROUNDING),
                interval(found.get("objects", {}).get("chair_i")),
            ]
            for name, record in self.matching("grounding-").items()
            for regime, captions in (("forced", "reference"), ("generated", "its own"))
            if "scores" in (found := record["regimes"].get(regime, {}))
        ]
        columns = " | ".join(GROUNDING.values())
        return table(f"model | captions | mentions | {columns} | CHAIR-i", rows)

    def entities(self) -> str:
        """Attention against boxes: the models, and the baseline maps of the default model."""
        rows = []
        for name, record in self.matching("entities-").items():
            found = record["regimes"]
            for kind in ("model", *BASELINES) if name == DEFAULT_MODEL else ("model",):
                forced, generated = (found[r]["scores"][kind] for r in ("forced", "generated"))
                cells = [interval((forced if m in forced else generated)[m]) for m in BOX_METRICS]
                label = link(name, f"entities-{name}") if kind == "model" else MAPS[kind]
                mentions = found["forced"]["coverage"]["mentions_with_mask"]
                rows.append([label, mentions if kind == "model" else "", *cells])
        return table(f"model | phrases | {' | '.join(BOX_METRICS.values())}", rows)

    def sentinels(self) -> str:
        """How well the visual sentinel of each model separates content words from function words."""
        rows = []
        for name, record in self.matching("sentinel-").items():
            for regime, captions in (("forced", "reference"), ("generated", "its own")):
                shares = record["regimes"][regime]["on_photo"]
                label = link(f"{name}: {record['mechanism']}", f"sentinel-{name}")
                grid = " × ".join(map(str, record["regimes"][regime]["grid"]))
                cells = [interval(shares[n], scale=100) for n in ("content", "function", "auroc")]
                rows.append([label, grid, captions, *cells])
        head = "model | regions | captions | 1 − β of content words, % | of function words, %"
        return table(f"{head} | AUROC, %", rows)

    def entity_types(self) -> str:
        """The scores of the default model by type of entity."""
        regimes = self.of(f"entities-{DEFAULT_MODEL}")["regimes"]
        rows = []
        for name, forced in regimes["forced"]["types"].items():
            cells = []
            for metric in BOX_METRICS:
                part = (
                    forced
                    if metric in forced["scores"]["model"]
                    else regimes["generated"]["types"][name]
                )
                blind = [part["scores"][kind][metric]["value"] for kind in BLIND]
                best = max((value for value in blind if value is not None), default=None)
                cells.append(f"{interval(part['scores']['model'][metric])} ({number(best)})")
            rows.append([name, number(forced["mentions"], 0), *cells])
        return table(f"type | phrases | {' | '.join(BOX_METRICS.values())}", rows)

    def faithfulness(self) -> str:
        """How far a word's log-probability falls when attended regions are erased."""
        orders = ("most", "random", "least")
        rows = [
            [
                *(link(name, f"faithfulness-flickr8k-{name}"), words, number(found["words"], 0)),
                *(interval(found[f"area_{order}"], 3) for order in orders),
                found["verdict"],
            ]
            for name, record in self.matching("faithfulness-flickr8k-").items()
            for words, found in record["regimes"]["forced"]["faithfulness"]["scores"].items()
            if words != "all"
        ]
        head = "model | words | number | most attended first | random order | least attended first"
        return table(f"{head} | verdict", rows)


def mechanism_table(rows: dict[str, Record]) -> str:
    """Return a table of mechanisms; the first report of each is on scenes like those of training."""
    percent = ("true_captions", "pointing", "discrimination")
    cells = []
    for name, row in rows.items():
        report, *others = row["reports"].values()
        harder = others[0] if others else {}
        taken = MISSING if row["resumed"] else number(row["training_seconds"] / 60)
        cells.append(
            [
                *(f"{name}: {row['mechanism']}", f"{row['parameters'] / 1e6:.2f} M", taken),
                number(row["cider"]),
                *(interval(report.get(key)) for key in (*percent, "mass")),
                interval(report.get("map_entropy"), 2),
                *(interval(harder.get(key)) for key in percent),
            ]
        )
    head = "mechanism | parameters | minutes | CIDEr | true captions, % | pointing, %"
    head += " | paired objects, % | mass in mask, % | entropy, nats"
    return table(f"{head} | harder: true captions, % | pointing, % | paired objects, %", cells)


def page(results: Path = DOCS / "results") -> str:
    """Return the whole page."""
    records = {f.stem: json.loads(f.read_text("utf-8")) for f in sorted(results.glob("*.json"))}
    tables = Tables(records)
    names = [name for name in dir(tables) if not name.startswith("_")]
    values = {name: getattr(tables, name) for name in names}
    return template(SCRIPTS / "results.md.jinja").render(values, source=source)


def main() -> int:
    """Write or check the page."""
    file = DOCS / "results.md"
    if "--check" in sys.argv:
        return int(file.read_text("utf-8") != page())
    file.write_text(page(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
