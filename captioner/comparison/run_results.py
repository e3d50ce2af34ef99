"""The results of a run folder: every ``results/*.json``, with the conditions of the measurement."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.errors import UsageError
from captioner.evaluation.bootstrap import Estimate
from captioner.evaluation.image_statistics import ENDING, ImageStatistics, read

SECTIONS = ("captions", "grounding", "faithfulness", "speed", "size")
SCORES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
FLUENCY = ("true_captions", "mean_length", "bad_endings")

Curve = list[tuple[float, Estimate]]
"""A deletion curve: shares of the regions, increasing, in (0, 1], with the mean drop at each, nats."""


@dataclass(frozen=True)
class Result:
    """Measures taken under the same conditions.

    ``setting`` is everything that the measures depend on besides the model, as text. Only results with
    the same setting are compared.
    """

    section: str  # the kind of measures, one of SECTIONS
    setting: str
    source: str  # the name of the file without its suffix
    values: dict[str, float]  # by measure, in display order
    intervals: dict[str, Estimate] = field(default_factory=dict)  # that the file holds
    image_statistics: list[ImageStatistics] = field(default_factory=list)
    curves: dict[tuple[str, str], Curve] = field(default_factory=dict)  # (words, order) → curve


@dataclass(frozen=True)
class Run:
    """The results of a run folder, its column heading in tables, and remarks about missing results."""

    name: str
    results: list[Result]
    notes: list[str]


def read_run(folder: Path, name: str) -> Run:
    """Read all results of a run folder.

    Raises:
        CaptionerError: the folder has no results, or one of its files cannot be read.
    """
    results: list[Result] = []
    notes: list[str] = []
    for file in sorted(folder.glob("results/*.json")):
        try:
            record = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(
                f"'{file}' cannot be read ({error}); write it again, or delete it"
            ) from error
        if isinstance(record, dict) and {"scores", "regimes"} & record.keys():
            images = file.with_suffix(ENDING)
            results += _results(record, file.stem, read(images) if images.is_file() else [])
            if record.get("resumed"):
                notes.append(f"{name}: training was interrupted, so its duration is unknown")
    if not results:
        raise UsageError(
            f"'{folder}' has no results: expected scores in results/*.json, as captioner fit and "
            "captioner test write them"
        )
    return Run(name, results, notes)


def _results(
    record: Mapping[str, Any], source: str, statistics: list[ImageStatistics]
) -> Iterator[Result]:
    """Yield the results of one file: caption scores, or the parts of an attention report."""
    if "regimes" in record:
        for regime, part in record["regimes"].items():
            for name, report in (("grounding", part), ("faithfulness", part.get("faithfulness"))):
                if report is not None and {"scores", "objects"} & report.keys():
                    of_part = [s for s in statistics if s.part == f"{regime}.{name}"]
                    yield _report({**record, **report}, source, of_part)
    elif "regime" in record:
        yield _report(record, source, statistics)
    else:
        yield from _captions(record, source, statistics)


def _captions(
    record: Mapping[str, Any], source: str, statistics: list[ImageStatistics]
) -> Iterator[Result]:
    """Yield the caption scores, speed and size that ``captioner fit`` and ``test`` write."""
    scores, machine = record["scores"], f"{record.get('machine')}, torch {record.get('torch')}"
    search = ", ".join(_named(record.get("decoding") or {}))
    data = f"{record.get('data')} {record.get('split')}, {scores.get('images', 0):,} images"
    setting = [data, search or "decoding unknown", f"{scores.get('tokenizer')} tokenizer"]
    setting += _supervision(record)
    values = {name: scores.get(name) for name in SCORES} | {n: record.get(n) for n in FLUENCY}
    yield Result("captions", ", ".join(setting), source, _numbers(values), {}, statistics)
    seconds, images = record.get("captioning_seconds"), scores.get("images")
    if seconds and images:
        setting = [data, search, f"annotations {record.get('annotations')}", machine]
        rate = {"captioning_images_per_second": images / seconds}
        yield Result("speed", ", ".join(setting), source, rate)
    taken = record.get("training_seconds")
    if taken is not None and not record.get("resumed"):
        yield Result("speed", machine, source, {"training_minutes": taken / 60})
    if parameters := _numbers({"trained_parameters": record.get("parameters")}):
        yield Result("size", "", source, parameters)


def _report(record: Mapping[str, Any], source: str, statistics: list[ImageStatistics]) -> Result:
    """The result in an attention report."""
    section = "faithfulness" if record.get("measure") == "faithfulness" else "grounding"
    scores, objects = record.get("scores", {}), record.get("objects", {})
    if section == "grounding" and (isinstance(scores.get("model"), dict) or "objects" in record):
        # The other maps are baselines; the report itself compares the model with them.
        lead = {"lead_over_time_averaged_map": record.get("delta") or {}}
        scores = {**scores.get("model", {}), **lead}
        scores |= {name: objects.get(name) for name in ("true_captions", "chair_i", "chair_s")}
        scores |= objects.get("model", {})
        scores |= {name: record.get(name) for name in ("map_entropy", "map_grad_cam")}
    images, regime = record.get("images"), record.get("regime")
    number = None if images is None else f"{images:,} images"
    data = (record.get("data"), record.get("split"), number, f"{regime} captions")
    parts = [str(part) for part in data if part]
    if isinstance(grid := record.get("grid"), list):  # masks differ between grids
        parts.append("grid " + " × ".join(map(str, grid)))
    # Forced captions do not depend on the search.
    for name in ("settings",) if regime == "forced" else ("decoding", "settings"):
        parts += _named(record.get(name) or {})
    parts += _supervision(record)
    leaves = dict(_leaves(scores))
    intervals = {name: leaf for name, leaf in leaves.items() if isinstance(leaf, Estimate)}
    values = {n: leaf.value if isinstance(leaf, Estimate) else leaf for n, leaf in leaves.items()}
    if not any(name in values for image in statistics[:1] for name in image.ratios):
        statistics = []
    setting = ", ".join(parts)
    return Result(section, setting, source, values, intervals, statistics, _curves(record))


def _named(options: Mapping[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')} {value}" for key, value in options.items()]


def _supervision(record: Mapping[str, Any]) -> list[str]:
    """Models whose attention was supervised are only compared with each other."""
    return ["attention supervised by masks"] if record.get("supervised_by_masks") else []


def _curves(record: Mapping[str, Any]) -> dict[tuple[str, str], Curve]:
    """The deletion curves in a faithfulness report."""
    return {
        (group, order): [
            (share, Estimate(**drop)) for share, drop in zip(record["shares"], drops, strict=True)
        ]
        for group, scores in record.get("scores", {}).items()
        if isinstance(scores, dict) and "shares" in record
        for order, drops in scores.get("falls", {}).items()
    }


def _leaves(scores: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float | Estimate]]:
    """Yield the scores in a tree under dotted names; integers (counts) and lists are left out."""
    for name, value in scores.items():
        if isinstance(value, dict) and {"value", "low", "high"} <= value.keys():
            numbers = (value["value"], value["low"], value["high"])
            if None not in numbers:
                yield prefix + name, Estimate(*map(float, numbers))
        elif isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            yield prefix + name, value


def _numbers(values: Mapping[str, Any]) -> dict[str, float]:
    """Keep the values that are numbers."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
