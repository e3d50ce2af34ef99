"""Measures of several runs in one table, with differences from the first run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from captioner.comparison.run_results import SECTIONS, Result, Run
from captioner.evaluation.bootstrap import Bootstrap, Estimate, Statistic
from captioner.evaluation.image_statistics import statistics as resampled_measures


@dataclass(frozen=True)
class Cell:
    """One measure of one run.

    Attributes:
        value: the measure.
        interval: its 95 % confidence interval, if per-image statistics are known.
        difference: from the first run; None for the first run, or if the first run lacks the measure.
        paired: the difference with the 95 % interval of a paired bootstrap over images, if both runs
            have per-image statistics of the same images.
    """

    value: float
    interval: Estimate | None = None
    difference: float | None = None
    paired: Estimate | None = None


@dataclass(frozen=True)
class Group:
    """All measures of one setting: per measure, one cell per run, None if it was not measured."""

    section: str
    setting: str
    rows: dict[str, list[Cell | None]]
    results: list[Result | None]


@dataclass(frozen=True)
class Comparison:
    """All groups in the order of ``SECTIONS``.

    Attributes:
        columns: the runs. A run that was measured twice in a setting, for example hard attention by
            argmax and by sampling, has two columns.
        groups: one per setting.
        notes: remarks for the reader.
    """

    columns: list[str]
    groups: list[Group]
    notes: list[str]


def compare(runs: Sequence[Run], resamples: int = 2000, seed: int = 0) -> Comparison:
    """Compare runs with the first of them.

    Args:
        runs: the first is the reference.
        resamples: number of bootstrap samples.
        seed: of the bootstrap; all differences of a setting share the samples.
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
        rows, remarks = _rows(list(columns), results, resamples, seed)
        groups.append(Group(section, setting, rows, results))
        notes += [f"{section}: {note}" for note in remarks]
    numbers = Counter(group.section for group in groups)
    several = [
        f"{section}: measured in {number} different settings (data, decoding, tokenizer, machine …); "
        "each has its own part of the table and is not compared with the others"
        for section, number in numbers.items()
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
    names: Sequence[str], results: Sequence[Result | None], resamples: int, seed: int
) -> tuple[dict[str, list[Cell | None]], list[str]]:
    """Return the cells of a group by measure, and remarks."""
    measures = dict.fromkeys(name for r in results if r is not None for name in r.values)
    rows: dict[str, list[Cell | None]] = {measure: [] for measure in measures}
    first, notes = results[0], []
    if first is None:
        notes.append(f"{names[0]} was not measured in this setting; no differences")
    first_statistics: dict[str, Statistic] = {}
    for column, (name, result) in enumerate(zip(names, results, strict=True)):
        if result is None:
            for row in rows.values():
                row.append(None)
            continue
        statistics = _statistics(result)
        if statistics is None:
            statistics = {}
            notes.append(
                f"{name}: {result.source}: the per-image statistics do not match the scores; left out"
            )
        if not column:
            first_statistics = statistics
        references: dict[str, Statistic] = {}
        if first is not None and first_statistics and statistics:
            if reason := _not_comparable(first, result, names[0]):
                notes.append(f"{name}: {reason}")
            else:
                references = first_statistics
        bootstrap = Bootstrap(len(result.image_statistics), resamples, seed) if statistics else None
        for measure, row in rows.items():
            row.append(
                _cell(
                    result,
                    measure,
                    first.values.get(measure) if column and first else None,
                    bootstrap,
                    statistics.get(measure),
                    references.get(measure),
                )
            )
    return rows, notes


def _cell(
    result: Result,
    measure: str,
    first: float | None,
    bootstrap: Bootstrap | None,
    statistic: Statistic | None,
    reference: Statistic | None,
) -> Cell | None:
    """Return a measure of a run, with its difference from the ``first`` run's value."""
    if measure not in result.values:
        return None
    value, interval = result.values[measure], result.intervals.get(measure)
    difference = None if first is None else value - first
    if bootstrap is None or statistic is None:
        return Cell(value, interval, difference)
    interval = interval or bootstrap.estimate(statistic)
    if first is None or reference is None:
        return Cell(value, interval, difference)
    paired = bootstrap.estimate(lambda counts: statistic(counts) - reference(counts))
    return Cell(value, interval, difference, paired)


def _not_comparable(first: Result, other: Result, name: str) -> str | None:
    """The reason why there can be no paired bootstrap of two results; None if there can."""
    scored = [result.image_statistics for result in (first, other)]
    ids, asked = (
        [[getattr(image, name) for image in images] for images in scored]
        for name in ("image_id", "asked")
    )
    if ids[0] != ids[1]:
        return f"scored on other images than {name}; no intervals"
    if asked[0] != asked[1]:
        return (
            f"scored on other words or mentions than {name}, because the vocabularies differ; "
            "no intervals"
        )
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
