"""The files that ``fit`` and ``test`` write: scores, captions and a model card."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.data.masks import read as read_masks
from captioner.data.module import CaptionDataModule
from captioner.data.scene_grammar import true_of
from captioner.evaluation.image_statistics import ENDING, lines
from captioner.evaluation.metrics import CaptionScorer
from captioner.files import write_text
from captioner.language.word_classes import fluency
from captioner.models.distributions import hard_attention
from captioner.provenance import provenance
from captioner.training.task import CaptioningTask

CARD = """---
library_name: captioner
pipeline_tag: image-to-text
---
# An attention-based image captioner

{model}

Trained on {data}. Scores on its {split} split, {images} photos,
generated captions, beam {beam_size}, tokenizer {tokenizer}:

| metric | value |
|---|---|
{rows}

{attention}

captioner {captioner}, commit {commit}, seed {seed}.

    captioner caption photo.jpg --model FOLDER
"""


def write_result(
    task: CaptioningTask, data: CaptionDataModule, split: str, folder: Path, **more: Any
) -> dict[str, Any]:
    """Score the captions that a test of ``split`` generated, print the scores and write two files.

    ``val-beam5.json`` has the scores, the settings and ``more``; this record is returned.
    ``val-beam5.images.jsonl`` has the captions and the statistics of each image.
    """
    scores, statistics = CaptionScorer(data.references(split)).per_image_scores(task.generated)
    cached = data.cache is True and not task.captioner.encoder.trainable
    record = {
        "command": " ".join(["captioner", *sys.argv[1:]]),
        "split": split,
        "data": data.name,
        "scores": scores.as_dict(),
        "decoding": asdict(task.decoding),
        "captions": "generated",
        **fluency(task.generated.values()),
        "mechanism": task.captioner.decoder.mechanism,
        "supervised_by_masks": task.supervision,
        "parameters": sum(p.numel() for p in task.parameters() if p.requires_grad),
        "captioning_seconds": round(task.generating_seconds, 2),
        "annotations": "cached" if cached else "computed",
        **more,
        **provenance(),
    }
    if (root := data.scenes) is not None:
        scenes = read_masks(root / "annotations" / f"instances_{split}.json", root / split)
        objects = {image.image_id: image.objects for image in scenes.images}
        true = sum(true_of(text, objects[int(i)]) for i, text in task.generated.items())
        record["true_captions"] = round(100 * true / len(task.generated), 1)
        print(f"{record['true_captions']} % of the captions are true of their scene")
    name = f"{split}-beam{task.decoding.beam_size}"
    for hard in hard_attention(task.captioner.decoder)[:1]:
        name += f"-{hard.test_time}"
    if task.decoding.samples > 1:
        name += f"-{task.decoding.samples}"
    file = folder / f"{name}.json"
    # Captions are written first, so that a crash cannot leave new scores beside old captions.
    write_text(file.with_suffix(ENDING), lines(statistics))
    write_text(file, json.dumps(record, indent=2) + "\n")
    meteor = "no METEOR (it needs Java)" if scores.meteor is None else f"METEOR {scores.meteor:.1f}"
    print(
        f"{split}, {scores.images:,} photos, generated captions ({scores.tokenizer}): BLEU-1..4 "
        f"{scores.bleu_1:.1f} / {scores.bleu_2:.1f} / {scores.bleu_3:.1f} / {scores.bleu_4:.1f}, "
        f"{meteor}, ROUGE-L {scores.rouge_l:.1f}, CIDEr {scores.cider:.1f}"
    )
    print(f"scores written to {file}")
    return record


def model_card(config: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the README.md of a model with this configuration tree and result of ``write_result``."""
    scores = {name.replace("_", "-").upper(): value for name, value in record["scores"].items()}
    rows = [f"| {name} | {v:.1f} |" for name, v in scores.items() if isinstance(v, float)]
    attention = "The attention was learned from captions alone."
    if supervision := record["supervised_by_masks"]:
        attention = (
            f"Object masks or boxes supervised the attention in training (λ = {supervision:g}). Do "
            "not compare it with models whose attention was learned from captions alone."
        )
    model = " → ".join(config[part]["class_path"] for part in ("encoder", "neck", "decoder"))
    filled = {**record, **record["scores"], **record["decoding"]}
    return CARD.format(model=model, rows="\n".join(rows), attention=attention, **filled)
