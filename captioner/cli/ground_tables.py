"""The report of ``captioner ground`` as Markdown, with columns that are aligned in a terminal."""

import math
from collections.abc import Mapping
from typing import Any

from captioner.comparison.formats import measure_label
from captioner.errors import plural
from captioner.evaluation.grounding import MAPS
from captioner.markdown import interval, table

METRICS = {name: measure_label(name) for name in ("discrimination", "pointing", "mass")}
ALL_METRICS = METRICS | {name: measure_label(name) for name in ("correctness", "f1_all", "f1_loc")}
BLIND = ("time_averaged", "mean_mask", "centre", "uniform")  # maps that ignore the word
LIU = (
    "Attention correctness of Liu et al. 2017 (Flickr30k, test photos): 38.4 % for attention trained "
    "on captions only, 32.1 % for uniform maps."
)
DROPS = (
    *("area_most", "area_random", "area_least", "most_over_random", "random_over_least"),
    "insertion_most_over_random",
)
CAPTIONS = {"forced": "reference captions", "generated": "its own captions"}


def page(report: Mapping[str, Any], full: bool = False) -> str:
    """Return the verdict in a few sentences and a table of six rows; with ``full``, all tables too."""
    regimes = report["regimes"]
    part = regimes.get("forced") or regimes["generated"]
    lines = [f"# Attention of {report['model']}", ""]
    if verdict := part.get("error", part.get("verdict")):
        if verdict[:1].isdigit():
            verdict = f"of two objects in a caption, the maps are on the right ones in {verdict}"
        lines += [f"{verdict[0].upper()}{verdict[1:]}."]
    if "faithfulness" in part:
        lines += [_words_verdict(part["faithfulness"]["scores"])]
    elif "scores" in part:
        lines += [_pointing_verdict(part["scores"])]
    if part.get("on_photo", {}).get("auroc", {}).get("value") is not None:
        lines += [_sentinel_verdict(part["on_photo"])]
    if weight := report.get("supervised_by_masks"):
        lines += [
            f"Its attention was supervised by masks or boxes (λ = {weight:g}); do not compare it with "
            "models trained on captions only."
        ]
    columns = {CAPTIONS[regime]: _measures(found, "model") for regime, found in regimes.items()}
    if "scores" in part:
        columns |= {MAPS[kind]: _measures(part, kind) for kind in ("time_averaged", "uniform")}
    # The baselines, in the last columns, have only the first rows. Their labels come first.
    labels = dict.fromkeys(label for column in reversed(columns.values()) for label in column)
    rows = [[label, *(column.get(label, "") for column in columns.values())] for label in labels]
    photos = plural(part.get("faithfulness", part)["images"], "photo")
    lines += ["", *table([photos, *columns], rows), ""]
    if full:
        for regime, found in regimes.items():
            lines += [f"## {CAPTIONS[regime].capitalize()}", "", *_tables(found)]
    more = "" if full else " More: --full."
    lines += [
        f"{report['mechanism']}; {report['data']}. 95 % confidence intervals over photos.{more}"
    ]
    return "\n".join(lines)


def _words_verdict(scores: Mapping[str, Any]) -> str:
    """Say how much less likely words become when regions are erased, in percent."""
    words = "content" if "content" in scores else "all"
    drops = (scores[words][f"area_{order}"]["value"] for order in ("most", "random", "least"))
    most, random, least = (f"{100 * -math.expm1(-drop):.1f} %" for drop in drops)
    meaning = "this does not show that the words depend on where it looks"
    if scores[words]["most_over_random"]["low"] > 0:
        meaning = "the words depend on where it looks"
    return (
        f"Its {words} words become {most} less likely when the regions that it attends to most are "
        f"erased, {random} for random regions, {least} for those attended to least: {meaning}."
    )


def _sentinel_verdict(on_photo: Mapping[str, Any]) -> str:
    """Say how well the visual sentinel separates content words from function words."""
    names = ("content", "function", "auroc")
    content, function, auroc = (interval(on_photo[name], scale=100) for name in names)
    return (
        f"Content words spend {content} % of their attention on the photo, function words {function} %. "
        f"In {auroc} % of all pairs of a content word and a function word, the content word has the "
        "larger share (AUROC)."
    )


def _pointing_verdict(scores: Mapping[str, Any]) -> str:
    """Compare the model's pointing score with that of the best map that ignores the word."""
    best = max(BLIND, key=lambda kind: scores[kind]["pointing"]["value"])
    return (
        f"They point at the object in {scores['model']['pointing']['value']:.1f} % of mentions; the "
        f"best of the maps that ignore the word, {MAPS[best]}, in "
        f"{scores[best]['pointing']['value']:.1f} %."
    )


def _measures(part: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the cells of a column of the first table by row."""
    scores = part.get("scores", {}).get(kind, {})
    cells = {f"{label}, %": interval(scores[m]) for m, label in METRICS.items() if m in scores}
    if kind == "model":
        words = part["faithfulness"]["scores"] if "faithfulness" in part else {}
        for group in ("content", "function"):
            if group in words:
                label = f"greatest − random, {group} words, nats"
                cells[label] = interval(words[group]["most_over_random"], 3)
        if "chair_i" in (objects := part.get("objects", {})):
            cells["named objects not in the photo, %"] = interval(objects["chair_i"])
        elif objects:
            label = "correctly named objects that it points at, %"
            cells[label] = interval(objects["f1_loc"])
    return cells


def _tables(part: Mapping[str, Any]) -> list[str]:
    """Return the tables of one regime: all maps, named objects, and deletion curves."""
    lines = []
    if "coverage" in part:
        counts = (f"{name.replace('_', ' ')} {n:,}" for name, n in part["coverage"].items())
        lines += [f"Grid {part['grid'][0]} × {part['grid'][1]}; {', '.join(counts)}.", ""]
    if "error" in part:
        lines += [f"{part['error'].capitalize()}.", ""]
    elif "scores" in part:
        scores = part["scores"]
        metrics = {name: label for name, label in ALL_METRICS.items() if name in scores["model"]}
        rows = [
            [label, *(interval(scores[kind][metric]) for metric in metrics)]
            for kind, label in MAPS.items()
            if kind in scores
        ]
        lead = [interval(part["delta"].get(metric), sign="+") for metric in metrics]
        rows += [[f"model − {MAPS['time_averaged']}", *lead]]
        titles = ["map, scores in %", *metrics.values()]
        uniform = math.log(math.prod(part["grid"]))
        entropy = f"{interval(part['map_entropy'], 2)} nats (uniform map: {uniform:.2f})"
        lines += [*table(titles, rows), "", f"Entropy of the maps, all words: {entropy}.", ""]
        if part["types"]:
            if part["regime"] == "forced":
                lines += [LIU, ""]
            lines += _types(part["types"], metrics)
    if "objects" in part:
        measured = {n: found for n, found in part["objects"].items() if isinstance(found, dict)}
        rows = [[measure_label(name), interval(found)] for name, found in measured.items()]
        named = plural(part["objects"]["mentions"], "named object")
        lines += [*table([named, "model, %"], rows), ""]
    if "faithfulness" in part:
        groups = part["faithfulness"]["scores"]
        rows = [
            [group, f"{scores['words']:,}", *(interval(scores[area], scale=100) for area in DROPS)]
            for group, scores in groups.items()
        ]
        lines += [
            "Mean drop of a word's log-probability, in hundredths of a nat, as regions are erased; "
            "insertion: its mean rise as they are put back:",
            "",
            *table(["words", "number", *map(measure_label, DROPS)], rows),
            "",
            *(f"**Faithfulness, {group} words: {s['verdict']}.**" for group, s in groups.items()),
            "",
        ]
    return lines


def _types(types: Mapping[str, Any], metrics: Mapping[str, str]) -> list[str]:
    """Return a table for each metric, with a row for each type of objects."""
    lines = []
    for metric, label in metrics.items():
        counted = "pairs" if metric == "discrimination" else "mentions"
        rows = [
            [
                *(name, f"{group[counted]:,}"),
                *(interval(group["scores"][kind][metric]) for kind in ("model", *BLIND)),
            ]
            for name, group in types.items()
        ]
        titles = [f"{label}, %", counted, "model", *(MAPS[kind] for kind in BLIND)]
        lines += [*table(titles, rows), ""]
    return lines
