"""The results of a run folder: every ``results/*.json``, with the conditions of the measurement."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from captioner.errors import UsageError, plural
from captioner.evaluation.image_statistics import ENDING, ImageStatistics, read

SECTIONS = ("captions", "grounding", "faithfulness", "speed", "size")
SCORES = ("bleu_1", "bleu_2", "bleu_3", "bleu_4", "meteor", "rouge_l", "cider")
FLUENCY = ("true_captions", "mean_length", "bad_endings")


@dataclass(frozen=True)
class Result:
    """Measures taken under the same conditions: only results with one setting are compared."""

    section: str  # the kind of measures, one of SECTIONS
    setting: str  # what the measures depend on besides the model
    source: str  # the name of the file without its suffix
    values: dict[str, float]  # by measure, in display order
    image_statistics: list[ImageStatistics] = field(default_factory=list)


def read_run(folder: Path) -> list[Result]:
    """Read all results of a run folder.

    Raises:
        CaptionerError: the folder has no results, or one of its files cannot be read.
    """
    results: list[Result] = []
    for file in sorted(folder.glob("results/*.json")):
        try:
            record = json.loads(file.read_text("utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"'{file}' cannot be read ({error})") from error
        if isinstance(record, dict) and {"scores", "regimes"} & record.keys():
            images = file.with_suffix(ENDING)
            results_of = _attention if "regimes" in record else _captions
            results += results_of(record, file.stem, read(images) if images.is_file() else [])
    if not results:
        raise UsageError(
            f"'{folder}' has no results: expected scores in results/*.json, as captioner fit and "
            "captioner test write them"
        )
    return results


def _captions(
    record: Mapping[str, Any], source: str, statistics: list[ImageStatistics]
) -> Iterator[Result]:
    """Yield the caption scores, speed and size that ``captioner fit`` and ``test`` write."""
    scores, machine = record["scores"], f"{record.get('machine')}, torch {record.get('torch')}"
    search = ", ".join(_named(record.get("decoding") or {}))
    images, seconds = scores.get("images", 0), record.get("captioning_seconds")
    data = f"{record.get('data')} {record.get('split')}, {plural(images, 'image')}"
    setting = [data, search or "decoding unknown", f"{scores.get('tokenizer')} tokenizer"]
    values = {n: scores.get(n) for n in SCORES} | {n: record.get(n) for n in FLUENCY}
    known = {name: float(value) for name, value in values.items() if value is not None}
    text = ", ".join(setting + _supervision(record))
    if known:
        yield Result("captions", text, source, known, statistics)
    if seconds and images:
        text = ", ".join([data, search, f"annotations {record.get('annotations')}", machine])
        yield Result("speed", text, source, {"captioning_images_per_second": images / seconds})
    if record.get("training_seconds") is not None and not record.get("resumed"):
        taken = {"training_minutes": record["training_seconds"] / 60}
        yield Result("speed", machine, source, taken)
    if record.get("parameters") is not None:
        yield Result("size", "", source, {"trained_parameters": float(record["parameters"])})


def _attention(
    record: Mapping[str, Any], source: str, statistics: list[ImageStatistics]
) -> Iterator[Result]:
    """Yield the grounding and faithfulness of every regime in a report of ``captioner ground``."""
    for regime, part in record["regimes"].items():
        # The other maps are baselines; the report itself compares the model with them.
        of_maps = dict(part.get("scores", {}).get("model", {}))
        for metric, lead in part.get("delta", {}).items():
            of_maps[f"lead_over_time_averaged_map.{metric}"] = lead
        of_maps |= part.get("objects", {}) | {"map_entropy": part.get("map_entropy")}
        words = part.get("faithfulness", {})
        groups = words.get("scores", {})
        of_words = {f"{group}.{name}": of[name] for group, of in groups.items() for name in of}
        parts = (("grounding", part, of_maps), ("faithfulness", words, of_words))
        for section, report, scores in parts:
            values = {
                name: float(score["value"])
                for name, score in scores.items()
                if isinstance(score, dict) and score.get("value") is not None
            }
            if values:
                of_part = [image for image in statistics if image.part == f"{regime}.{section}"]
                yield Result(section, _setting({**record, **report}), source, values, of_part)


def _setting(report: Mapping[str, Any]) -> str:
    """Everything that a part of a report of ``captioner ground`` depends on besides the model."""
    parts = [report.get("data"), plural(report["images"], "image"), f"{report['regime']} captions"]
    if "grid" in report:  # masks differ between grids
        parts.append("grid " + " × ".join(map(str, report["grid"])))
    if report["regime"] != "forced":  # forced captions do not depend on the search
        parts += _named(report.get("decoding") or {})
    parts += _named(report.get("settings") or {}) + _supervision(report)
    return ", ".join(filter(None, parts))


def _named(options: Mapping[str, Any]) -> list[str]:
    return [f"{key.replace('_', ' ')} {value}" for key, value in options.items()]


def _supervision(record: Mapping[str, Any]) -> list[str]:
    """Models whose attention was supervised are only compared with each other."""
    return ["attention supervised by masks"] if record.get("supervised_by_masks") else []
