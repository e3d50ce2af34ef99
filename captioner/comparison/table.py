"""Measures of several runs: one table, its groups never mixed, differences from the first run."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from captioner.comparison.results import SECTIONS, Result, Run
from captioner.evaluation.bootstrap import Bootstrap, Estimate, Statistic
from captioner.evaluation.tallies import statistics


@dataclass(frozen=True)
class Cell:
    """A measure of a run.

    Attributes:
        value: the measure.
        interval: with its 95 % interval, where images are known.
        difference: from the first run; None for that run itself, and where that has no such measure.
        paired: with the 95 % interval of the paired bootstrap over images, where both runs' are known.
    """

    value: float
    interval: Estimate | None = None
    difference: float | None = None
    paired: Estimate | None = None


@dataclass(frozen=True)
class Group:
    """What was measured in one setting: for every measure a cell of each column; None if not taken."""

    section: str
    setting: str
    rows: dict[str, list[Cell | None]]
    results: list[Result | None]


@dataclass(frozen=True)
class Comparison:
    """All groups, in the order of ``SECTIONS``.

    Attributes:
        columns: the runs; one that was measured twice in a setting, as hard attention may be by its
            argmax and by sampling, has a column for each.
        groups: one for each setting.
        notes: what must be known to read it.
    """

    columns: list[str]
    groups: list[Group]
    notes: list[str]


def compare(runs: Sequence[Run], resamples: int = 2000, seed: int = 0) -> Comparison:
    """Puts runs beside each other.

    Args:
        runs: the first is what the others differ from.
        resamples: of the bootstrap.
        seed: of the resamples, which all differences in a setting share.
    """
    settings: dict[tuple[str, str], None] = {}
    columns: dict[str, dict[tuple[str, str], Result]] = {}
    for run in runs:
        for result in run.results:
            key = (result.section, result.setting)
            settings.setdefault(key)
            column = columns.setdefault(run.name, {})
            if key in column and column[key].values != result.values:
                column = columns.setdefault(f"{run.name}: {result.source}", {})
            column.setdefault(key, result)
    notes = [note for run in runs for note in run.notes]
    groups = []
    for section, setting in sorted(settings, key=lambda key: SECTIONS.index(key[0])):
        results = [column.get((section, setting)) for column in columns.values()]
        rows, said = _rows(list(columns), results, resamples, seed)
        groups.append(Group(section, setting, rows, results))
        notes += [f"{section}: {note}" for note in said]
    lone = [group.section for group in groups if _lacks_intervals(group)]
    if lone:
        notes.append(
            f"{', '.join(dict.fromkeys(lone))}: a difference without an interval is of a measure of "
            "which it is not kept what each image adds to it"
        )
    return Comparison(list(columns), groups, _apart(groups) + list(dict.fromkeys(notes)))


def _lacks_intervals(group: Group) -> bool:
    """Whether some differences over images have none; speed and size are not measured over images."""
    cells = [cell for row in group.rows.values() for cell in row if cell is not None]
    over_images = group.section not in ("speed", "size")
    return over_images and any(c.difference is not None and c.paired is None for c in cells)


def _apart(groups: Sequence[Group]) -> list[str]:
    """Says which sections have several settings."""
    notes = []
    for section in SECTIONS:
        number = sum(group.section == section for group in groups)
        if number > 1:
            notes.append(
                f"{section}: measured in {number} different settings (data, decoding, tokenizer, "
                "machine …); each has its own part of the table, and none is compared with another"
            )
    return notes


def _rows(
    names: Sequence[str], results: Sequence[Result | None], resamples: int, seed: int
) -> tuple[dict[str, list[Cell | None]], list[str]]:
    """The cells of a group, and what is to be said of them."""
    notes: list[str] = []
    known: list[dict[str, Statistic]] = []
    for name, result in zip(names, results, strict=True):
        measured, note = _statistics(result)
        known.append(measured)
        if note:
            notes.append(f"{name}: {note}")
    first = results[0]
    if first is None:
        notes.append(f"{names[0]} was not measured in a setting that others were; no differences")
    ids = [[tally.image_id for tally in result.tallies] if result else [] for result in results]
    asked = [[tally.asked for tally in result.tallies] if result else [] for result in results]
    bootstraps = {
        len(of_run): Bootstrap(len(of_run), resamples, seed)
        for of_run, measured in zip(ids, known, strict=True)
        if measured
    }
    measures = dict.fromkeys(name for r in results if r is not None for name in r.values)
    rows: dict[str, list[Cell | None]] = {measure: [] for measure in measures}
    for column, result in enumerate(results):
        same = bool(known[0] and known[column]) and ids[column] == ids[0]
        if known[0] and known[column] and not same:
            notes.append(f"{names[column]}: scored on other pictures than {names[0]}; no intervals")
        elif same and asked[column] != asked[0]:
            same = False
            notes.append(
                f"{names[column]}: scored on other words or mentions than {names[0]}, as models of "
                "different vocabularies are; no intervals"
            )
        for measure, row in rows.items():
            if result is None or measure not in result.values:
                row.append(None)
                continue
            value, interval = result.values[measure], result.intervals.get(measure)
            own = known[column].get(measure)
            if own is not None and interval is None:
                interval = bootstraps[len(ids[column])].estimate(own)
            difference, paired = None, None
            if column and first is not None and measure in first.values:
                difference = value - first.values[measure]
                other = known[0].get(measure)
                if same and own is not None and other is not None:
                    paired = bootstraps[len(ids[0])].estimate(_difference(own, other))
            row.append(Cell(value, interval, difference, paired))
    return rows, notes


def _statistics(result: Result | None) -> tuple[dict[str, Statistic], str]:
    """The measures that any resample of the images can be given; and why there are none."""
    if result is None or not result.tallies:
        return {}, ""
    found = statistics(result.tallies)
    whole = np.ones((1, len(result.tallies)))
    for measure in set(found) & set(result.values):
        value = result.values[measure]
        if abs(float(found[measure](whole)[0]) - value) > 1e-3 * max(1.0, abs(value)):
            return {}, f"{result.source}: its tallies of images are of other scores; left out"
    return found, ""


def _difference(one: Statistic, other: Statistic) -> Statistic:
    return lambda counts: one(counts) - other(counts)
