"""The model cards, from what is in docs/results; only what was seen by eye is written by hand."""

import json
import tomllib
from pathlib import Path
from typing import Any

from scores import METRICS, figures

from pretrained.recipes import RECIPES, SIDE

SEEN = Path(__file__).with_name("seen.toml")
INTRO = """---
library_name: captioner
pipeline_tag: image-to-text
datasets: [flickr8k]
language: en
---
# {name}

{title}, after {paper}; {mechanism}. {parameters:.1f} million parameters, {megabytes:.1f} MB, behind an
EfficientNet-Lite2 that was fine-tuned with `show-attend-tell-soft` and that the bundled models share
(`weights: FLICKR8K`).

    captioner caption photo.jpg --model {name}
    captioner explain photo.jpg --model {name} --output looked

## Data

The 6,000 training photos of Flickr8k with five captions each (Hodosh, Young, Hockenmaier 2013), here
resized to {side} × {side}, whatever their shape; every choice was made on its 1,000 development photos.
The photos belong to those who took them and are given out for research and teaching alone; none of them
is in this package. The encoder began with ImageNet's weights.

## What it is for, and what not

For studying attention, for teaching, as a start for your own training, and as a first draft of alt
text that a person reads and mends. It knows the {words:,} words of photos of people and dogs outdoors:
of other pictures it says what comes nearest in that world, in the same sure voice. Not for describing
people to those who depend on it being right, not for deciding anything about anyone: what it says of sex
and age are guesses from clothes and hair, as its training captions are. It cannot read, count beyond two
or three, or know who somebody is.
"""

AVERAGED = (
    "The weights are the mean of those of the last {number}, which differ in their seeds alone."
)


def card(name: str, results: Path) -> str:
    """The README.md of a bundled model; a section whose measurement is missing says so.

    Args:
        name: in ``RECIPES``.
        results: the folder of the JSON files.
    """
    scored = _read(results / f"pretrained-{name}.json")
    recipe = RECIPES[name]
    if scored is None:
        return f"# {name}\n\n{recipe.title}, after {recipe.paper}. Not measured yet.\n"
    text = INTRO.format(
        name=name,
        title=recipe.title,
        paper=recipe.paper,
        mechanism=scored["mechanism"],
        parameters=scored["parameters"] / 1e6,
        megabytes=scored["bytes"] / 1e6,
        words=scored["words"],
        side=SIDE,
    )
    sections = [
        *("## Scores", "", *_scores(scored)),
        *("", "## Where it looks", "", *_looks(name, results)),
        *("", "## Seen by eye", "", *_seen(name)),
        *("", "## How it was made", "", *_steps(name, results)),
    ]
    return text + "\n" + "\n".join(sections) + "\n"


def _scores(scored: dict[str, Any]) -> list[str]:
    scores, decoding = scored["scores"], scored["decoding"]
    paths = ""
    if decoding["samples"] > 1:
        paths = f"the mean of {decoding['samples']} paths of sampled locations, "
    return [
        f"Development split, {scores['images']:,} photos, captions generated from the JPEG files by the",
        f"model as it is shipped; beam {decoding['beam_size']}, length penalty "
        f"{decoding['length_penalty']}, no {decoding['no_repeat']} words following each other twice, "
        f"{paths}tokenizer {scores['tokenizer']}, commit {scored['commit']}.",
        "",
        f"| {' | '.join(METRICS.values())} | words a caption |",
        "|---" * (len(METRICS) + 1) + "|",
        f"| {' | '.join(figures(scores))} | {scored['mean_length']:.1f} |",
    ]


def _looks(name: str, results: Path) -> list[str]:
    told = []
    paths = RECIPES[name].decoding.samples > 1
    one = " (one drawn region a word, not the mean of the paths)" if paths else ""
    if grounding := _read(results / f"grounding-coco-{name}.json"):
        for regime, found in grounding["regimes"].items():
            of = f"reference captions fed in{one}" if regime == "forced" else "its own captions"
            if "error" in found:
                told.append(f"- COCO photos with masks, {of}: {found['error']}")
                continue
            point, base = (
                found["scores"]["model"]["pointing"],
                found["scores"]["uniform"]["pointing"],
            )
            told.append(
                f"- {found['images']} COCO photos with masks, {of}: paired objects {found['verdict']}; "
                f"the map's peak is on the object for {_interval(point)} % of the words that name one "
                f"({base['value']:.1f} % by chance)."
            )
    if faithful := _read(results / f"faithfulness-flickr8k-{name}.json"):
        found = faithful["regimes"]["forced"]["faithfulness"]
        content = found["scores"]["content"]
        areas = ", ".join(
            f"{order} {_interval(content[f'area_{order}'], 3)}"
            for order in ("most", "random", "least")
        )
        told.append(
            f"- {found['images']:,} development photos, reference captions"
            f"{' (by the most probable regions)' if paths else ''}: how far the log-probability "
            f"of a content word falls when regions are erased in that order, in nats: {areas}; "
            f"{content['verdict']}. Function words: {found['scores']['function']['verdict']}."
        )
    return told or ["Not measured yet."]


def _seen(name: str) -> list[str]:
    notes = tomllib.loads(SEEN.read_text("utf-8")) if SEEN.is_file() else {}
    if name not in notes:
        return ["Not looked through yet."]
    seen = notes[name]
    return [
        f"The captions of {seen['photos']} development photos ({seen['which']}) were read beside the "
        f"photos, and the overlays of {seen['overlays']} of them looked at:",
        "",
        "| what | photos |",
        "|---|---|",
        *(f"| {what} | {count} |" for what, count in seen["counts"].items()),
        "",
        *seen["notes"].strip().splitlines(),
    ]


def _steps(name: str, results: Path) -> list[str]:
    recipe = RECIPES[name]
    told, total = [], 0.0
    for step in recipe.steps:
        made = _read(results / f"training-{step}.json")
        if made is None:
            continue
        total += made["training_seconds"]
        told.append(
            f"- `{made['command']}`: {made['training_seconds']:,.0f} seconds, seed {made['seed']}, "
            f"epoch {made['epoch']}, commit {made['commit']}, {made['machine']}."
        )
    return [
        f"In {total / 60:.0f} minutes, by two processes of one thread each:",
        f"`python scripts/train_pretrained.py train {name} --root DIR` runs",
        "",
        *told,
        *(["", AVERAGED.format(number=len(recipe.averaged))] if recipe.averaged else []),
    ]


def _interval(found: dict[str, float], digits: int = 1) -> str:
    return f"{found['value']:.{digits}f} [{found['low']:.{digits}f}, {found['high']:.{digits}f}]"


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None
