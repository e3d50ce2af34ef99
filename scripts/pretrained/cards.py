"""Model cards from docs/results, the recipes and seen.toml, which has observations made by eye."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from results_tables import METRICS, command, figures, number, table, template

from captioner.markdown import interval
from pretrained.recipes import RECIPES, SIDE, STEPS

HERE = Path(__file__).parent
COUNTS = {
    "correct": "correct, though it may omit what matters",
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
    cells = [*figures(scored["scores"]), number(scored["mean_length"])]
    return template(HERE / "card.md.jinja").render(
        name=name,
        recipe=recipe,
        scored=scored,
        side=SIDE,
        coco="--data.sources" in STEPS[recipe.steps[-1]],
        scores=table(" | ".join([*METRICS.values(), "words per caption"]), [cells]),
        attention="\n".join(_attention(name, results)) or "Not measured yet.",
        counts=table("caption | photos", [(COUNTS[k], n) for k, n in seen["counts"].items()]),
        seen=seen,
        steps=[{**step, "command": command(step)} for step in steps],
        seconds=sum(step["training_seconds"] for step in steps),
    )


def _attention(name: str, results: Path) -> Iterator[str]:
    sampled = RECIPES[name].decoding.samples > 1
    grounding = _read(results / f"grounding-coco-{name}.json")
    for regime, found in (grounding["regimes"] if grounding else {}).items():
        captions = "its own captions"
        if regime == "forced":
            captions = "reference captions" + (
                " (one sampled region for each word)" if sampled else ""
            )
        if "error" in found:
            yield f"- {captions}: {found['error']}"
            continue
        point = interval(found["scores"]["model"]["pointing"])
        chance = number(found["scores"]["uniform"]["pointing"]["value"])
        yield (
            f"- {found['images']} COCO photos with masks, {captions}: paired objects "
            f"{found['verdict']}. The peak of the map is on the object for {point} % of the words "
            f"that name one (chance: {chance} %)."
        )
    if faithful := _read(results / f"faithfulness-flickr8k-{name}.json"):
        found = faithful["regimes"]["forced"]["faithfulness"]
        content, function = (found["scores"][words] for words in ("content", "function"))
        orders = ("most", "random", "least")
        areas = ", ".join(f"{order} {interval(content[f'area_{order}'], 3)}" for order in orders)
        yield (
            f"- {found['images']:,} development photos, reference captions"
            f"{' (by the most probable regions)' if sampled else ''}: when regions are erased in order "
            f"of attention, the log-probability of a content word falls by (nats) {areas}; "
            f"{content['verdict']}. Function words: {function['verdict']}."
        )


def _read(file: Path) -> dict[str, Any] | None:
    return json.loads(file.read_text("utf-8")) if file.is_file() else None
