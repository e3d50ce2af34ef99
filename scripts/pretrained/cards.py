"""Model cards from docs/results, the recipes and seen.toml, which has observations made by eye."""

import json
import tomllib
from pathlib import Path
from typing import Any

from results_tables import METRICS, Record, command, figures, number, table, template

from captioner.markdown import interval
from pretrained.recipes import MEANS, RECIPES, SIDE, Folders, options

HERE = Path(__file__).parent
COUNTS = {
    "correct": "correct, possibly incomplete",
    "wrong_detail": "wrong colour, garment, number or gender",
    "wrong_action": "right subjects, wrong action or place",
    "invented": "a person or object that is not there",
    "senseless": "senseless or repetitive",
}


def card(name: str, results: Path) -> str:
    """Return the README.md of the bundled model ``name``, from the JSON files in ``results``."""
    recipe = RECIPES[name]
    scored = _read(results / f"pretrained-{name}.json")
    if scored is None:
        return f"# {name}\n\n{recipe.title}, after {recipe.paper}. Not measured yet.\n"
    seen = tomllib.loads((HERE / "seen.toml").read_text("utf-8"))[name]
    steps = [found for step in recipe.steps if (found := _read(results / f"training-{step}.json"))]
    last = options(recipe.steps[-1], Folders())
    cells = [*figures(scored["scores"]), number(scored["mean_length"])]
    return template(HERE / "card.md.jinja").render(
        name=name,
        recipe=recipe,
        scored=scored,
        side=SIDE,
        two_streams="configs/model/two-stream.yaml" in last,
        add_keys="--model.neck.add_keys" in last,
        supervised="--data.entities" in last,
        start=[
            part
            for mean, parts in MEANS.items()
            if str(Folders.runs / mean) in last
            for part in parts
        ],
        listed=any("photos.jsonl" in step["command"] for step in steps),
        scores=table(" | ".join([*METRICS.values(), "words per caption"]), [cells]),
        grounding=_grounding(name, results),
        faithfulness=_faithfulness(name, results),
        counts=table("caption | photos", [(COUNTS[k], n) for k, n in seen["counts"].items()]),
        seen=seen,
        steps=[{**step, "command": _command(step)} for step in steps],
        seconds=sum(step["training_seconds"] for step in steps),
        machines=list(dict.fromkeys(step["machine"].rpartition(", ")[0] for step in steps)),
    )


def _command(step: Record) -> str:
    """Return the command of a step; in old records, ``luong-dot`` is the model before boxes."""
    start = "--model.init_from "
    return command(step).replace(f"{start}luong-dot ", f"{start}runs/pretrained/luong ")


def _grounding(name: str, results: Path) -> str:
    grounding = _read(results / f"grounding-coco-{name}.json")
    rows = [
        [
            "reference" if regime == "forced" else "its own",
            found["coverage"]["mentions_with_mask"],
            *(interval(found["scores"][kind]["pointing"]) for kind in ("model", "uniform")),
            found["coverage"]["pairs"],
            interval(found["scores"]["model"]["discrimination"]),
        ]
        for regime, found in (grounding["regimes"] if grounding else {}).items()
        if "scores" in found
    ]
    head = "captions | words | pointing, % | pointing of a uniform map, %"
    return table(f"{head} | pairs | paired objects, %", rows)


def _faithfulness(name: str, results: Path) -> str:
    faithful = _read(results / f"faithfulness-flickr8k-{name}.json")
    scores = faithful["regimes"]["forced"]["faithfulness"]["scores"] if faithful else {}
    rows = [
        [
            words,
            *(interval(scores[words][f"area_{order}"], 3) for order in ("most", "random", "least")),
            scores[words]["verdict"],
        ]
        for words in ("content", "function")
        if words in scores
    ]
    return table("words | most | random | least | verdict", rows)


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None
