"""Per-image statistics: together they give the scores of all images, and of any resample."""

import random

import numpy as np
import pytest

from captioner.errors import EvaluationError
from captioner.evaluation.image_statistics import ImageStatistics, lines, read, statistics
from captioner.evaluation.metrics import CaptionScorer, read_references
from tests.evaluation.test_evaluation import (
    METEOR_LINE,
    METEOR_SCORE,
    REFERENCES,
    RESULTS,
    first_captions,
)

BLEU = [f"bleu_{n}" for n in range(1, 5)]


@pytest.fixture(scope="module")
def scored():
    """References, candidates, scores and image statistics of real captions."""
    references, candidates = read_references(REFERENCES), first_captions(RESULTS)
    scorer = CaptionScorer(references, java=False, tokenizer=str.split)
    return references, candidates, *scorer.per_image_scores(candidates)


def values(images, counts):
    counts = np.array([counts], float)
    return {name: measure(counts)[0] for name, measure in statistics(images).items()}


def test_resample_is_scored_like_a_corpus(scored):
    """BLEU of images drawn with replacement equals coco-caption's score of the same list."""
    references, candidates, scores, images = scored
    drawn = random.Random(1).choices(range(len(images)), k=len(images))
    copies = {number: images[index].image_id for number, index in enumerate(drawn)}
    repeated = {number: references[image] for number, image in copies.items()}
    scorer = CaptionScorer(repeated, java=False, tokenizer=str.split)
    expected = scorer.score({number: candidates[image] for number, image in copies.items()})
    result = values(images, np.bincount(drawn, minlength=len(images)))
    for name in (*BLEU, "rouge_l"):
        assert result[name] == pytest.approx(getattr(expected, name), rel=1e-9)
    assert result["bleu_4"] != pytest.approx(scores.bleu_4)


# Answers of METEOR's program: statistics and score of five captions. The fifth caption equals one of
# its references.
METEOR = [
    (METEOR_LINE, METEOR_SCORE),
    ("6 7 3 3 3 3 3 3 0 0 0 0 0 0 0 0 0 0 0 0 4 6 6", 36.84414458647121),
    ("5 8 3 2 2 2 2 2 0 0 0 0 0 0 0 0 0 0 0 0 4 4 4", 17.438692098092642),
    ("10 9 4 3 5 5 2 2 0 0 0 0 1 1 0 0 0 0 0 0 5 8 8", 41.62797323114994),
    ("3 3 1 1 2 2 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 3 3", 100.0),
]
METEOR_CORPUS = 34.453481266688823  # its program's score of all five


def test_meteor_equals_that_of_its_program():
    images = [
        ImageStatistics(number, meteor=tuple(map(float, text.split())))
        for number, (text, _) in enumerate(METEOR)
    ]
    result = statistics(images)["meteor"]
    assert result(np.eye(5)) == pytest.approx([value for _, value in METEOR])
    assert result(np.ones((1, 5))) == pytest.approx([METEOR_CORPUS])
    no_match = ImageStatistics(0, meteor=(0.0, 5.0, 0.0, 2.0, *[0.0] * 19))
    assert statistics([no_match])["meteor"](np.ones((1, 1))) == [0]


def test_files_are_read_as_written(tmp_path, scored):
    images = [
        *scored[3][:20],
        ImageStatistics(0, {"all.area_most": (0.5, 3.0)}),
        ImageStatistics("é\u2028", caption=""),
    ]
    file = tmp_path / "val.images.jsonl"
    file.write_text(lines(images), "utf-8")
    assert {i.image_id: i for i in read(file)} == {i.image_id: i for i in images}
    file.write_text(lines(scored[3]), "utf-8")
    assert first_captions(file) == scored[1]  # captioner evaluate reads the captions


@pytest.mark.parametrize("text", ['{"caption": "a"}', "[", '{"image_id": 1, "other": 2}'])
def test_other_files_are_refused(tmp_path, text):
    file = tmp_path / "x.images.jsonl"
    file.write_text(text)
    with pytest.raises(EvaluationError, match="holds no image statistics"):
        read(file)
