"""What a run folder says of its run: every result in ``results/*.json``, and under which conditions."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.errors import UsageError
from captioner.evaluation.bootstrap import Estimate
from captioner.evaluation.tallies import ENDING, Tally, read

SECTIONS = ("captions", "grounding", "faithfulness", "speed", "size")


@dataclass(frozen=True)
class Curve:
    """How far a word's log-probability falls, by the share of regions erased in one order.

    Attributes:
        shares: increasing, in (0, 1].
        falls: in nats.
    """

    shares: tuple[float, ...]
    falls: tuple[Estimate, ...]


@dataclass(frozen=True)
class Result:
    """Measures that were taken under the same conditions.

    Attributes:
        section: one of ``SECTIONS``: what kind of measures they are.
        setting: all that they depend on beside the model, in words. Only what was measured in the
            same setting is ever compared.
        source: the file's name without its ending.
        values: by measure, in the order in which they are shown.
        intervals: of the measures that came with one.
        tallies: what each image adds, where that was kept.
        curves: (group of words, order) → how far it falls.
    """

    section: str
    setting: str
    source: str
    values: dict[str, float]
    intervals: dict[str, Estimate] = field(default_factory=dict)
    tallies: tuple[Tally, ...] = ()
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """A run folder, read.

    Attributes:
        name: as tables show it.
        results: all that it was scored at.
        notes: what is left out, and why.
    """

    name: str
    results: tuple[Result, ...]
    notes: tuple[str, ...] = ()


def read_run(folder: Path, name: str) -> Run:
    """All results of a run.

    Raises:
        UsageError: there is no such folder, it has no results, or one of them cannot be read.
        EvaluationError: a file of tallies cannot be read.
    """
    if not folder.is_dir():
        raise UsageError(f"no run '{folder}'; give run folders, as captioner fit writes them")
    results: list[Result] = []
    notes: list[str] = []
    for file in sorted(folder.glob("results/*.json")):
        try:
            record = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"'{file}' cannot be read ({error}); make it again, or delete it"
            ) from error
        if isinstance(record, dict) and isinstance(
            record.get("scores", record.get("regimes")), dict
        ):
            tallies_file = file.with_suffix(ENDING)
            tallies = tuple(read(tallies_file)) if tallies_file.is_file() else ()
            results += _results(record, file.stem, tallies)
            if record.get("resumed"):
                notes.append(f"{name}: its training was interrupted, and its minutes are not known")
    if not results:
        raise UsageError(
            f"'{folder}' has no results: expected scores in results/*.json, as captioner fit and "
            "captioner test write them"
        )
    return Run(name, tuple(results), tuple(dict.fromkeys(notes)))


def _results(
    record: Mapping[str, Any], source: str, tallies: tuple[Tally, ...]
) -> Iterator[Result]:
    """The results in one file: scores of captions, or a report about attention."""
    if "regimes" in record:
        for regime, part in record["regimes"].items():
            for name, report in (("grounding", part), ("faithfulness", part.get("faithfulness"))):
                if report is not None and {"scores", "objects"} & report.keys():
                    own = tuple(tally for tally in tallies if tally.part == f"{regime}.{name}")
                    yield _report(report, record, source, own)
    elif "regime" in record:
        yield _report(record, {}, source, tallies)
    else:
        yield from _captions(record, source, tallies)


def _captions(
    record: Mapping[str, Any], source: str, tallies: tuple[Tally, ...]
) -> Iterator[Result]:
    """Scores of generated captions, and what else ``captioner fit`` and ``test`` write down."""
    scores = record["scores"]
    decoding = record.get("decoding") or {}
    searched = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in decoding.items())
    data = f"{record.get('data')} {record.get('split')}, {scores.get('images', 0):,} pictures"
    order = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
    more = {name: record.get(name) for name in ("true_captions", "mean_length", "bad_endings")}
    measures = {**{name: scores.get(name) for name in order}, **more}
    setting = [data, searched or "decoding unknown", f"{scores.get('tokenizer')} tokenizer"]
    setting += _track(record.get("supervised_by_masks"))
    yield Result("captions", ", ".join(setting), source, _numbers(measures), {}, tallies)
    seconds, images = record.get("captioning_seconds"), scores.get("images")
    speed = {
        "captioning_images_per_second": images / seconds if seconds and images else None,
    }
    machine = f"{record.get('machine')}, torch {record.get('torch')}"
    if numbers := _numbers(speed):
        annotations = f"annotations {record.get('annotations')}"
        yield Result("speed", f"{data}, {searched}, {annotations}, {machine}", source, numbers)
    minutes = record.get("training_seconds")
    if minutes is not None and not record.get("resumed"):
        yield Result("speed", machine, source, {"training_minutes": minutes / 60})
    if parameters := _numbers({"trained_parameters": record.get("parameters")}):
        yield Result("size", "", source, parameters)


def _report(
    record: Mapping[str, Any], around: Mapping[str, Any], source: str, tallies: tuple[Tally, ...]
) -> Result:
    """A report about attention; ``around`` is the one that it is part of."""
    section = str(record.get("measure", "grounding"))
    scores, delta = record.get("scores", {}), record.get("delta")
    if section == "grounding" and (isinstance(scores.get("model"), dict) or "objects" in record):
        # The other maps are baselines, which the report itself sets against the model's.
        scores = {**scores.get("model", {}), "lead_over_time_averaged_map": delta or {}}
        objects = record.get("objects", {})
        scores |= {name: objects.get(name) for name in ("true_captions", "chair_i", "chair_s")}
        scores |= objects.get("model", {})
        scores |= {name: record.get(name) for name in ("map_entropy", "map_grad_cam")}

    def known(name: str) -> Any:
        return record.get(name, around.get(name))

    images = known("images")
    where = [known("data"), known("split"), None if images is None else f"{images:,} pictures"]
    parts = [str(part) for part in (*where, f"{record.get('regime')} captions") if part]
    if isinstance(grid := record.get("grid"), list):  # grids of other sizes can hold other masks
        parts.append("grid " + " × ".join(map(str, grid)))
    # References are fed in, however the model would search.
    searched = ["decoding"] if record.get("regime") != "forced" else []
    for name in (*searched, "settings"):
        if isinstance(given := known(name), dict):
            parts += [f"{key.replace('_', ' ')} {value}" for key, value in given.items()]
    parts += _track(known("supervised_by_masks"))
    values: dict[str, float] = {}
    intervals: dict[str, Estimate] = {}
    for name, value in _leaves(scores):
        if isinstance(value, Estimate):
            values[name], intervals[name] = value.value, value
        else:
            values[name] = value
    own = {name for tally in tallies[:1] for name in tally.ratios}
    return Result(
        section if section in SECTIONS else "grounding",
        ", ".join(parts),
        source,
        values,
        intervals,
        tallies if own & set(values) else (),
        _curves(record),
    )


def _track(supervised: float | None) -> list[str]:
    """What a model was told beside captions: such are compared among themselves alone."""
    return ["attention supervised by masks"] if supervised else []


def _curves(record: Mapping[str, Any]) -> dict[tuple[str, str], Curve]:
    """Of a report of ``captioner.evaluation.faithfulness``."""
    shares, found = record.get("shares"), {}
    for group, scores in record.get("scores", {}).items():
        falls = scores.get("falls") if isinstance(scores, dict) else None
        if isinstance(falls, dict) and isinstance(shares, list):
            for order, levels in falls.items():
                found[group, order] = Curve(
                    tuple(shares), tuple(Estimate(**level) for level in levels)
                )
    return found


def _leaves(scores: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | Estimate]]:
    """The numbers in a tree, named by their way through it; counts and lists are no scores."""
    for name, value in scores.items():
        if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
            if None not in (value["value"], value["low"], value["high"]):
                numbers = (value["value"], value["low"], value["high"])
                yield prefix + name, Estimate(*map(float, numbers))
        elif isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            yield prefix + name, value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Those that are known."""
    return {
        name: float(value)
        for name, value in values.items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }
