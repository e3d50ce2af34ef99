"""The report of ``captioner ground`` as Markdown tables that line up in a terminal."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from captioner.evaluation.grounding import MAPS

COLUMNS = {
    "discrimination": "paired objects",
    "pointing": "pointing",
    "mass": "mass in mask",
    "gain": "gain",
    "average_precision": "AP",
    "iou": "IoU",
}
REGIMES = {"forced": "Reference captions, forced", "generated": "Captions the model generated"}
ERASED = {
    "area_most": "most looked at first",
    "area_random": "in random order",
    "area_least": "least looked at first",
    "most_over_random": "most − random",
    "random_over_least": "random − least",
}
OBJECT_COLUMNS = {"f1_all": "F1-all", "f1_all_macro": "F1-all, macro", "f1_loc": "F1-loc"}


def markdown(report: Mapping[str, Any]) -> str:
    """The report as Markdown to read."""
    lines = [f"# Attention of {report['model']}", "", f"{report['mechanism']}; {report['data']}."]
    if report.get("supervised_by_masks"):
        lines += [
            f"Its attention was supervised by masks (λ = {report['supervised_by_masks']:g}): a track of "
            "its own, not to be compared with models that learned from captions alone."
        ]
    lines += [f"{report['transform'].capitalize()}. 95 % intervals over pictures.", ""]
    for regime, part in report["regimes"].items():
        lines += [f"## {REGIMES[regime]}", ""]
        if "error" in part:
            lines += [part["error"], ""]
        elif "scores" in part:
            lines += _section(part)
        if "objects" in part:
            lines += _objects(part["objects"])
        lines += _faithfulness(part["faithfulness"])
    return "\n".join(lines).rstrip()


def _section(part: Mapping[str, Any]) -> list[str]:
    seen = part["coverage"]
    columns = list(COLUMNS.items())
    objects = part.get("objects")
    rows = [
        [label, *(_cell(part["scores"][name][metric]) for metric, _ in columns)]
        + [_cell(objects[name][metric]) for metric in OBJECT_COLUMNS if objects]
        for name, label in MAPS.items()
        if name in part["scores"]
    ]
    delta = ["model − time-averaged", *(_cell(part["delta"][m], "+") for m, _ in columns)]
    average = list(part["scores"]).index("time_averaged")
    rows.insert(average + 1, delta + [""] * (len(rows[0]) - len(delta)))
    head = ["maps", *COLUMNS.values(), *(OBJECT_COLUMNS.values() if objects else ())]
    lines = [
        f"{part['images']:,} pictures, {seen['captions']:,} captions, {seen['words']:,} words, of which "
        f"{seen['words_naming_objects_percent']:.1f} % name objects; {seen['mentions_with_mask']:,} of "
        f"{seen['mentions']:,} mentions have a mask; {seen['pairs']:,} pairs of objects. "
        f"Grid {part['grid'][0]} × {part['grid'][1]}. Priors: {part['prior']}. Scores in percent."
        + _dropped(seen),
        "",
        *_rows(head, rows),
        "",
        f"**Paired objects: {part['verdict']}.**",
        "",
    ]
    if "map_entropy" in part:  # not in reports of older versions
        entropy, like = (_cell(part[f"map_{name}"], digits=2) for name in ("entropy", "grad_cam"))
        even = math.log(part["grid"][0] * part["grid"][1])
        lines += [
            f"Entropy of the maps, all words: {entropy} nats, where an even map has {even:.2f}. "
            f"Correlation with Grad-CAM, mentions: {like}.",
            "",
        ]
    metrics = [(metric, label) for metric, label in columns if metric != "discrimination"]
    lines += _rows(
        ["the model on", "mentions", *(label for _, label in metrics), "gain − time-averaged"],
        [
            [name, f"{part['mentions']:,}"]
            + [_cell(part[metric]["model"]) for metric, _ in metrics]
            + [_cell(part["gain"]["delta"], "+")]
            for name, part in part["slices"].items()
        ],
    )
    return [*lines, ""]


def _objects(objects: Mapping[str, Any]) -> list[str]:
    """What the captions name that is not there."""
    lines = [
        f"CHAIR: {_cell(objects['chair_i'])} % of the {objects['mentions']:,} objects named are "
        f"neither annotated nor in a reference; {_cell(objects['chair_s'])} % of the captions name "
        "such.",
        "",
    ]
    if "true_captions" in objects:
        true = _cell(objects["true_captions"])
        lines += [f"{true} % of the captions are true of their scene.", ""]
    return lines


def _faithfulness(part: Mapping[str, Any]) -> list[str]:
    """How far words fall as regions are erased."""
    groups = part["scores"]
    return [
        f"Faithfulness, {part['images']:,} pictures: how far the log-probability of a word falls, in "
        "hundredths of a nat, as regions of the picture are erased at its step; the area over the "
        "curve.",
        "",
        *_rows(
            ["words", "number", *ERASED.values()],
            [
                [group, f"{found['words']:,}"]
                + [
                    _cell({key: 100 * value for key, value in found[area].items()})
                    for area in ERASED
                ]
                for group, found in groups.items()
            ],
        ),
        "",
        *(
            f"**Faithfulness, {group} words: {found['verdict']}.**"
            for group, found in groups.items()
        ),
        "",
    ]


def _dropped(seen: Mapping[str, Any]) -> str:
    """How many mentions are left out because the model does not know their words."""
    number = seen.get("mentions_of_unknown_words")  # not counted by older versions
    return f" {number:,} mentions left out, whose words the model does not know." if number else ""


def _cell(estimate: Mapping[str, float | None], sign: str = "", digits: int = 1) -> str:
    """An estimate with its interval."""
    value, low, high = (estimate[key] for key in ("value", "low", "high"))
    if value is None:
        return "–"
    form = f"{sign}.{digits}f"
    return f"{value:{form}} [{low:{form}}, {high:{form}}]"


def _rows(head: list[str], rows: Iterable[list[str]]) -> list[str]:
    """A Markdown table whose columns line up in a terminal."""
    table = [head, *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    lines = [
        "| "
        + " | ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        + " |"
        for row in table
    ]
    rule = [":" + "-" * (widths[0] + 1), *("-" * (width + 1) + ":" for width in widths[1:])]
    return [lines[0], "|" + "|".join(rule) + "|", *lines[1:]]
