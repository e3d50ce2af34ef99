"""Measures of several runs in one table, with differences from the first run."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from captioner.comparison.run_results import SECTIONS, Result
from captioner.evaluation.bootstrap import Bootstrap, Statistic
from captioner.evaluation.image_statistics import statistics as resampled_measures


@dataclass(frozen=True)
class Cell:
    """One measure of one run, with 95 % intervals where per-image statistics allow them."""

    value: float
    low: float | None = None
    high: float | None = None
    difference: float | None = None  # from the first run, if that has the measure
    difference_low: float | None = None  # of a paired bootstrap over images
    difference_high: float | None = None


@dataclass(frozen=True)
class Group:
    """All measures of one setting: per measure, one cell per run, None if it was not measured."""

    section: str
    setting: str
    rows: dict[str, list[Cell | None]]


@dataclass(frozen=True)
class Comparison:
    """One group for each setting; a run that was measured twice in a setting has two columns."""

    columns: list[str]
    groups: list[Group]
    notes: list[str]


def compare(runs: Mapping[str, Sequence[Result]]) -> Comparison:
    """Compare the results of runs, by their names, with those of the first."""
    columns: dict[str, dict[tuple[str, str], Result]] = {}
    for name, run_results in runs.items():
        for result in run_results:
            key = (result.section, result.setting)
            column = columns.setdefault(name, {})
            if key in column and column[key].values != result.values:
                column = columns.setdefault(f"{name}: {result.source}", {})
            column.setdefault(key, result)
    settings = dict.fromkeys((r.section, r.setting) for found in runs.values() for r in found)
    groups, notes = [], []
    for section, setting in sorted(settings, key=lambda key: SECTIONS.index(key[0])):
        results = {name: column.get((section, setting)) for name, column in columns.items()}
        rows, remarks = _rows(results)
        groups.append(Group(section, setting, rows))
        notes += [f"{section}: {note}" for note in remarks]
    several = [
        f"{section}: measured in {number} different settings (data, decoding, tokenizer, machine …); "
        "each has its own part of the table and is not compared with the others"
        for section, number in Counter(group.section for group in groups).items()
        if number > 1
    ]
    return Comparison(list(columns), groups, several + list(dict.fromkeys(notes)))


def _rows(
    results: Mapping[str, Result | None],
) -> tuple[dict[str, list[Cell | None]], list[str]]:
    """Return the cells of a group by measure, and remarks."""
    (first_name, first), *_ = results.items()
    notes = [] if first else [f"{first_name} was not measured in this setting; no differences"]
    columns: list[dict[str, Cell]] = []
    for name, result in results.items():
        if result is None:
            columns.append({})
            continue
        cells, problem = _cells(result, None if result is first else first, first_name)
        columns.append(cells)
        if problem:
            notes.append(f"{name}: {problem}; no intervals")
    measures = dict.fromkeys(measure for column in columns for measure in column)
    return {name: [column.get(name) for column in columns] for name in measures}, notes


def _cells(
    result: Result, first: Result | None, first_name: str
) -> tuple[dict[str, Cell], str | None]:
    """Return the cells of a run by measure, and the reason if intervals are missing."""
    own, others, problem = _statistics(result), _statistics(first) if first else {}, None
    if not own and result.section not in ("speed", "size"):
        problem = f"{result.source} has no per-image statistics"
    elif first and others and (problem := _not_comparable(first, first_name, result)):
        others = {}
    bootstrap = Bootstrap(len(result.image_statistics)) if own else None
    cells = {}
    for measure, value in result.values.items():
        cell = Cell(value)
        if first and measure in first.values:
            cell = replace(cell, difference=value - first.values[measure])
        if bootstrap and measure in own:
            interval = bootstrap.estimate(own[measure])
            cell = replace(cell, low=interval.low, high=interval.high)
            if measure in others:
                interval = bootstrap.difference(own[measure], others[measure])
                cell = replace(cell, difference_low=interval.low, difference_high=interval.high)
        cells[measure] = cell
    return cells, problem


def _not_comparable(first: Result, first_name: str, other: Result) -> str | None:
    """The reason why there can be no paired bootstrap of two results; None if there can."""
    ones, others = first.image_statistics, other.image_statistics
    if [image.image_id for image in ones] != [image.image_id for image in others]:
        return f"scored on other images than {first_name}"
    if [image.scored for image in ones] != [image.scored for image in others]:
        return f"scored on other words or mentions than {first_name}"
    return None


def _statistics(result: Result) -> dict[str, Statistic]:
    return resampled_measures(result.image_statistics) if result.image_statistics else {}
