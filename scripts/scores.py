"""A record's scores as the cells of a table."""

from collections.abc import Iterable, Mapping

METRICS = {
    **{f"bleu_{n}": f"BLEU-{n}" for n in range(1, 5)},
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr",
}


def figures(scores: Mapping[str, float | None], metrics: Iterable[str] = METRICS) -> list[str]:
    """With one digit; a dash for what could not be measured, as METEOR without Java."""
    found = (scores[metric] for metric in metrics)
    return ["–" if score is None else f"{score:.1f}" for score in found]
