"""The report of ``captioner ground`` as Markdown, with columns that are aligned in a terminal."""

import math
from collections.abc import Mapping
from typing import Any

from captioner.evaluation.grounding import MAPS
from captioner.markdown import interval, table

METRICS = {
    "discrimination": "paired objects",
    "pointing": "pointing",
    "mass": "mass in mask",
    "gain": "gain",
    "average_precision": "AP",
    "iou": "IoU",
}
OBJECT_METRICS = {"f1_all": "F1-all", "f1_loc": "F1-loc"}
DROPS = {
    "area_most": "greatest weights first",
    "area_random": "random order",
    "area_least": "least weights first",
    "most_over_random": "greatest − random",
    "random_over_least": "random − least",
}
SHORT = ("discrimination", "pointing", "mass")
ROWS = (
    *(f"{METRICS[metric]}, %" for metric in SHORT),
    *(f"greatest − random, {group} words, nats" for group in ("content", "function")),
    "named objects that are not there, %",
)
CAPTIONS = {"forced": "reference captions", "generated": "its own captions"}
TITLES = {"forced": "Reference captions (forced)", "generated": "Generated captions"}


def page(report: Mapping[str, Any]) -> str:
    """Return the verdict in two sentences and a table of six rows as Markdown."""
    regimes = report["regimes"]
    part = regimes.get("forced") or regimes["generated"]
    verdicts = [_words_verdict(part["faithfulness"]["scores"])]
    columns = {CAPTIONS[regime]: _measures(found, "model") for regime, found in regimes.items()}
    if "verdict" in part or "error" in part:
        verdicts.insert(0, _maps_verdict(part))
    if "scores" in part:
        columns |= {MAPS[kind]: _measures(part, kind) for kind in ("time_averaged", "uniform")}
    rows = [[label, *(column.get(label, "") for column in columns.values())] for label in ROWS]
    measured = [row for row in rows if any(row[1:])]
    lines = [
        f"# Attention of {report['model']}",
        "",
        *verdicts,
        *_supervision(report),
        "",
        *table([f"{part['faithfulness']['images']:,} photos", *columns], measured),
        "",
        f"{report['mechanism']}; {report['data']}. 95 % confidence intervals over photos. More: --full.",
    ]
    return "\n".join(lines)


def _supervision(report: Mapping[str, Any]) -> list[str]:
    """Return a warning if the attention was trained on masks."""
    if not (weight := report.get("supervised_by_masks")):
        return []
    return [
        f"Its attention was supervised by masks or boxes (λ = {weight:g}); do not compare it with "
        "models trained on captions only."
    ]


def _maps_verdict(part: Mapping[str, Any]) -> str:
    verdict = part.get("error", part.get("verdict"))
    if verdict[:1].isdigit():
        return f"Of two objects in a caption, the maps are on the right ones in {verdict}."
    return f"{verdict.capitalize()}."


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


def _measures(part: Mapping[str, Any], kind: str) -> dict[str, str]:
    """Return the cells of a column by row."""
    scores, objects = part.get("scores", {}).get(kind, {}), part.get("objects", {})
    cells = {f"{METRICS[m]}, %": interval(scores[m]) for m in SHORT if m in scores}
    if kind == "model":
        words = part["faithfulness"]["scores"]
        cells |= {
            f"greatest − random, {group} words, nats": interval(found["most_over_random"], 3)
            for group, found in words.items()
        }
        if objects:
            cells["named objects that are not there, %"] = interval(objects["chair_i"])
    return cells


def full_report(report: Mapping[str, Any]) -> str:
    """Return all tables of the report as Markdown."""
    lines = [f"# Attention of {report['model']}", "", f"{report['mechanism']}; {report['data']}."]
    lines += _supervision(report)
    lines += [f"{report['transform'].capitalize()}. 95 % confidence intervals over images.", ""]
    for regime, part in report["regimes"].items():
        lines += [f"## {TITLES[regime]}", ""]
        if "error" in part:
            lines += [part["error"], ""]
        elif "scores" in part:
            lines += _grounding(part)
        if "objects" in part:
            lines += _objects(part["objects"])
        lines += _faithfulness(part["faithfulness"])
    return "\n".join(lines).rstrip()


def _grounding(part: Mapping[str, Any]) -> list[str]:
    """Describe the coverage, the scores of all maps, and the verdict."""
    coverage, scores, objects = part["coverage"], part["scores"], part.get("objects")
    f1 = OBJECT_METRICS if objects else {}
    rows = []
    for kind, label in MAPS.items():
        if kind in scores:
            cells = [interval(scores[kind][metric]) for metric in METRICS]
            rows.append([label, *cells, *(interval(objects[kind][m]) for m in f1 if objects)])
        if kind == "time_averaged":
            lead = [interval(part["delta"][metric], sign="+") for metric in METRICS]
            rows.append([f"model − {label}", *lead, *("" for _ in f1)])
    unknown = coverage["mentions_of_unknown_words"]
    left_out = f" {unknown:,} mentions with words unknown to the model are left out."
    entropy, similarity = (interval(part[f"map_{name}"], 2) for name in ("entropy", "grad_cam"))
    return [
        f"{part['images']:,} images, {coverage['captions']:,} captions, {coverage['words']:,} words, "
        f"{coverage['words_naming_objects_percent']:.1f} % of which name objects; "
        f"{coverage['mentions_with_mask']:,} of {coverage['mentions']:,} mentions have a mask; "
        f"{coverage['pairs']:,} pairs of objects. Grid {part['grid'][0]} × {part['grid'][1]}. "
        f"Priors: {part['prior']}. Scores in percent.{left_out if unknown else ''}",
        "",
        *table(["map", *METRICS.values(), *f1.values()], rows),
        "",
        f"**Paired objects: {part['verdict']}.**",
        "",
        f"Entropy of the maps, all words: {entropy} nats (uniform map: "
        f"{math.log(math.prod(part['grid'])):.2f}). Correlation with Grad-CAM, mentions: {similarity}.",
        "",
    ]


def _objects(objects: Mapping[str, Any]) -> list[str]:
    """Describe CHAIR, and for scenes the percentage of true captions."""
    lines = [
        f"CHAIR: {interval(objects['chair_i'])} % of the {objects['mentions']:,} named objects are "
        f"neither annotated nor in a reference; {interval(objects['chair_s'])} % of the captions name "
        "such an object.",
        "",
    ]
    if true := objects.get("true_captions"):
        lines += [f"{interval(true)} % of the captions are true of their scene.", ""]
    return lines


def _faithfulness(part: Mapping[str, Any]) -> list[str]:
    """Describe the areas under the deletion curves and give the verdicts."""
    groups = part["scores"]
    rows = [
        [group, f"{scores['words']:,}", *(interval(scores[area], scale=100) for area in DROPS)]
        for group, scores in groups.items()
    ]
    return [
        f"Faithfulness, {part['images']:,} images: mean drop of a word's log-probability, in "
        "hundredths of a nat, as regions are erased at its step (area under the deletion curve).",
        "",
        *table(["words", "number", *DROPS.values()], rows),
        "",
        *(f"**Faithfulness, {g} words: {scores['verdict']}.**" for g, scores in groups.items()),
        "",
    ]
