"""Measures of several runs in one table, with differences from the first run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from captioner.comparison.run_results import SECTIONS, Result, Run
from captioner.evaluation.bootstrap import Bootstrap, Estimate, Statistic
from captioner.evaluation.image_statistics import statistics as resampled_measures


@dataclass(frozen=True)
class Cell:
    """One measure of one run."""

    value: float
    interval: Estimate | None = None  # if the report or per-image statistics give it
    difference: float | None = None  # from the first run, if that has the measure
    paired: Estimate | None = None  # the difference, by a paired bootstrap over images


@dataclass(frozen=True)
class Group:
    """All measures of one setting: per measure, one cell per run, None if it was not measured."""

    section: str
    setting: str
    rows: dict[str, list[Cell | None]]
    results: list[Result | None]


@dataclass(frozen=True)
class Comparison:
    """One group for each setting, in the order of ``SECTIONS``.

    A run that was measured twice in a setting, for example hard attention by argmax and by sampling,
    has two columns.
    """

    columns: list[str]
    groups: list[Group]
    notes: list[str]


def compare(runs: Sequence[Run], resamples: int = 2000, seed: int = 0) -> Comparison:
    """Compare runs with the first of them; all differences of a setting share the resamples."""
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
        results = {name: column.get((section, setting)) for name, column in columns.items()}
        rows, remarks = _rows(results, resamples, seed)
        groups.append(Group(section, setting, rows, list(results.values())))
        notes += [f"{section}: {note}" for note in remarks]
    several = [
        f"{section}: measured in {number} different settings (data, decoding, tokenizer, machine …); "
        "each has its own part of the table and is not compared with the others"
        for section, number in Counter(group.section for group in groups).items()
        if number > 1
    ]
    if without := dict.fromkeys(group.section for group in groups if _lacks_intervals(group)):
        notes.append(
            f"{', '.join(without)}: differences of measures without per-image statistics have no "
            "interval"
        )
    return Comparison(list(columns), groups, several + list(dict.fromkeys(notes)))


def _lacks_intervals(group: Group) -> bool:
    """Return whether a difference has no interval; speed and size never have one."""
    cells = [cell for row in group.rows.values() for cell in row if cell is not None]
    over_images = group.section not in ("speed", "size")
    return over_images and any(c.difference is not None and c.paired is None for c in cells)


def _rows(
    results: Mapping[str, Result | None], resamples: int, seed: int
) -> tuple[dict[str, list[Cell | None]], list[str]]:
    """Return the cells of a group by measure, and remarks."""
    (first_name, first), *_ = results.items()
    notes = [] if first else [f"{first_name} was not measured in this setting; no differences"]
    columns: list[dict[str, Cell]] = []
    first_statistics: dict[str, Statistic] = {}
    for name, result in results.items():
        if result is None:
            columns.append({})
            continue
        statistics, references = _statistics(result), first_statistics
        if statistics is None:
            statistics = {}
            notes.append(
                f"{name}: {result.source}: the per-image statistics do not match the scores; left out"
            )
        if result is first:
            first_statistics = statistics
        elif first and statistics and references and (reason := _not_comparable(first, result)):
            notes.append(f"{name}: {reason.format(first_name)}; no intervals")
            references = {}
        bootstrap = Bootstrap(len(result.image_statistics), resamples, seed) if statistics else None
        reference_values = first.values if first and result is not first else {}
        cells = {}
        for measure, value in result.values.items():
            interval, difference, paired = result.intervals.get(measure), None, None
            if measure in reference_values:
                difference = value - reference_values[measure]
            if bootstrap and measure in statistics:
                interval = interval or bootstrap.estimate(statistics[measure])
                if difference is not None and measure in references:
                    paired = bootstrap.difference(statistics[measure], references[measure])
            cells[measure] = Cell(value, interval, difference, paired)
        columns.append(cells)
    measures = dict.fromkeys(
        name for result in results.values() if result for name in result.values
    )
    return {name: [column.get(name) for column in columns] for name in measures}, notes


def _not_comparable(first: Result, other: Result) -> str | None:
    """The reason why there can be no paired bootstrap of two results; None if there can."""
    ones, others = first.image_statistics, other.image_statistics
    if [image.image_id for image in ones] != [image.image_id for image in others]:
        return "scored on other images than {}"
    if [image.asked for image in ones] != [image.asked for image in others]:
        return "scored on other words or mentions than {}, because the vocabularies differ"
    return None


def _statistics(result: Result) -> dict[str, Statistic] | None:
    """Return the measures that can be resampled; None if they do not reproduce the result's values."""
    if not result.image_statistics:
        return {}
    found = resampled_measures(result.image_statistics)
    all_images = np.ones((1, len(result.image_statistics)))
    for measure in set(found) & set(result.values):
        value = result.values[measure]
        if abs(float(found[measure](all_images)[0]) - value) > 1e-3 * max(1.0, abs(value)):
            return None
    return found
