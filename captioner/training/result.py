"""The result of a run on a split: two files, ``val-beam5.json`` and ``val-beam5.images.jsonl``.

The first has the scores and how they came about, the second the captions and what each adds.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from captioner.data.grammar import true_of
from captioner.data.module import CaptionDataModule
from captioner.data.shapes_folder import read_things
from captioner.evaluation.captions import CaptionScorer
from captioner.evaluation.fluency import fluency
from captioner.evaluation.tallies import ENDING, lines
from captioner.files import write_text
from captioner.models.attention.distributions import hard_attention
from captioner.provenance import provenance
from captioner.training.card import table
from captioner.training.task import CaptioningTask


def write_result(
    task: CaptioningTask, data: CaptionDataModule, split: str, folder: Path, **more: Any
) -> dict[str, Any]:
    """Scores the captions that the task has generated, prints the scores and keeps them.

    Args:
        task: after a test; it knows its captions.
        data: which has the references.
        split: that was captioned.
        folder: where the two files go.
        more: what else is to be remembered, by name.

    Returns:
        What the first file has.
    """
    scores, tallies = CaptionScorer(data.references(split)).judge(task.generated)
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
        record["true_captions"] = round(_true(task.generated, root, split), 1)
        print(f"{record['true_captions']} % of the captions are true of their scene")
    file = folder / f"{_name(task, split)}.json"
    # The tallies first: a result with those of another would compare wrongly.
    write_text(file.with_suffix(ENDING), lines(tallies))
    write_text(file, json.dumps(record, indent=2) + "\n")
    print(table(scores, split))
    print(f"scores written to {file}")
    return record


def _name(task: CaptioningTask, split: str) -> str:
    """What was scored, and how it was decoded."""
    name = f"{split}-beam{task.decoding.beam_size}"
    for law in hard_attention(task.captioner.decoder)[:1]:
        name += f"-{law.test_time}"
    return name if task.decoding.samples == 1 else f"{name}-{task.decoding.samples}"


def _true(captions: dict[int | str, str], root: Path, split: str) -> float:
    """Percent of the generated captions that say nothing false of their generated scene."""
    things = read_things(root, split)
    return 100 * sum(true_of(text, things[int(i)]) for i, text in captions.items()) / len(captions)
