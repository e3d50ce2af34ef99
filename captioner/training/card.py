"""Scores for people: in a line, and on the card of a model."""

from collections.abc import Mapping
from typing import Any

from captioner.evaluation.captions import Scores


def table(scores: Scores, split: str) -> str:
    """Scores in one line to read."""
    meteor = "no METEOR (it needs Java)" if scores.meteor is None else f"METEOR {scores.meteor:.1f}"
    bleu = " / ".join(
        f"{b:.1f}" for b in (scores.bleu_1, scores.bleu_2, scores.bleu_3, scores.bleu_4)
    )
    return (
        f"{split}, {scores.images:,} pictures, generated captions ({scores.tokenizer}): "
        f"BLEU-1..4 {bleu}, {meteor}, ROUGE-L {scores.rouge_l:.1f}, CIDEr {scores.cider:.1f}"
    )


def model_card(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """The README.md of a model folder: what it is, on what it was scored, and by which commit."""
    scores = record["scores"]
    rows = "\n".join(
        f"| {name.replace('_', '-').upper()} | {value:.1f} |"
        for name, value in scores.items()
        if isinstance(value, float)
    )
    told = record["supervised_by_masks"]
    track = (
        f"Its attention was supervised by object masks (λ = {told:g}) in training: a track of its own, "
        "not to be compared with models that learned where to look from captions alone."
        if told
        else "Where to look it learned from captions alone."
    )
    return f"""---
library_name: captioner
pipeline_tag: image-to-text
---
# An attention-based image captioner

{config["encoder"]["class_path"]} → {config["refiner"]["class_path"]} → {config["decoder"]["class_path"]}

Trained on {record["data"]}. Scores on its {record["split"]} split, {scores["images"]} pictures,
generated captions, beam {record["decoding"]["beam_size"]}, tokenizer {scores["tokenizer"]}:

| metric | value |
|---|---|
{rows}

{track}

captioner {record["captioner"]}, commit {record["commit"]}, seed {record["seed"]}.

    captioner caption photo.jpg --model FOLDER
"""
