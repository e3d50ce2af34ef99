"""What each image adds: put together again it gives the scores of all, and of any resample."""

import json
import random

import numpy as np
import pytest

from captioner.errors import EvaluationError
from captioner.evaluation.captions import CaptionScorer, read_references, read_results, score
from captioner.evaluation.tallies import Tally, lines, read, statistics
from test_evaluation import REFERENCES, RESULTS, TOY_CANDIDATES, TOY_REFERENCES, needs_java

BLEU = [f"bleu_{n}" for n in range(1, 5)]


@pytest.fixture(scope="module")
def judged():
    """Real captions: their references, themselves, their scores, and what each adds."""
    references, candidates = read_references(REFERENCES), read_results(RESULTS)
    scorer = CaptionScorer(references, java=False, tokenizer=str.split)
    return references, candidates, *scorer.judge(candidates)


def of(tallies, counts):
    counts = np.array([counts], float)
    return {name: found(counts)[0] for name, found in statistics(tallies).items()}


def test_all_images_give_the_scores_of_all(judged):
    _, candidates, scores, tallies = judged
    found = of(tallies, [1] * len(tallies))
    assert set(found) == {*BLEU, "rouge_l", "cider"}
    for name, value in found.items():
        assert value == pytest.approx(getattr(scores, name), rel=1e-9)
    assert {t.image_id: t.caption for t in tallies} == candidates


def test_a_resample_is_scored_as_if_its_images_were_all(judged):
    """BLEU of images drawn with replacement: as coco-caption scores that very list."""
    references, candidates, _, tallies = judged
    drawn = random.Random(1).choices(range(len(tallies)), k=len(tallies))
    copies = {place: tallies[image].image_id for place, image in enumerate(drawn)}
    expected = score(
        {place: candidates[image] for place, image in copies.items()},
        {place: references[image] for place, image in copies.items()},
        java=False,
        tokenizer=str.split,
    )
    found = of(tallies, np.bincount(drawn, minlength=len(tallies)))
    for name in (*BLEU, "rouge_l"):
        assert found[name] == pytest.approx(getattr(expected, name), rel=1e-9)
    assert found["bleu_4"] != pytest.approx(judged[2].bleu_4)


# What METEOR's program answered: statistics of five captions, the fifth one of its references word by
# word; its score of each alone, and of all.
METEOR = [
    ("7 4 4 1 2 2 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 3 3", 0.3472234871394288),
    ("6 7 3 3 3 3 3 3 0 0 0 0 0 0 0 0 0 0 0 0 4 6 6", 0.3684414458647121),
    ("5 8 3 2 2 2 2 2 0 0 0 0 0 0 0 0 0 0 0 0 4 4 4", 0.17438692098092642),
    ("10 9 4 3 5 5 2 2 0 0 0 0 1 1 0 0 0 0 0 0 5 8 8", 0.4162797323114994),
    ("3 3 1 1 2 2 1 1 0 0 0 0 0 0 0 0 0 0 0 0 1 3 3", 1.0),
]


def test_meteor_is_that_of_its_program():
    tallies = [
        Tally(place, meteor=tuple(map(float, text.split())))
        for place, (text, _) in enumerate(METEOR)
    ]
    found = statistics(tallies)["meteor"]
    assert found(np.eye(5)) == pytest.approx([100 * value for _, value in METEOR])
    assert found(np.ones((1, 5))) == pytest.approx([34.453481266688823])
    nothing = Tally(0, meteor=(0.0, 5.0, 0.0, 2.0, *[0.0] * 19))
    assert statistics([nothing])["meteor"](np.ones((1, 1))) == [0]


@needs_java
@pytest.mark.slow
def test_meteor_of_all_is_that_of_java():
    scores, tallies = CaptionScorer(TOY_REFERENCES, java=True).judge(TOY_CANDIDATES)
    found = of(tallies, [1] * len(tallies))
    assert found["meteor"] == pytest.approx(scores.meteor)


def test_files(tmp_path, judged):
    """Read as written, and captioner evaluate reads the captions."""
    tallies = [
        *judged[3][:20],
        Tally(0, {"all.area_most": (0.5, 3.0)}),
        Tally("é\u2028", caption=""),
    ]
    file = tmp_path / "val.images.jsonl"
    file.write_text(lines(tallies), "utf-8")
    found = read(file)
    assert {t.image_id: t for t in found} == {t.image_id: t for t in tallies}
    file.write_text(lines(judged[3]), "utf-8")
    assert read_results(file) == judged[1]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no image"),
        ("{", "holds no tallies"),
        ("[1]", "holds no tallies"),
        ('{"caption": "a"}', "holds no tallies"),
        ('{"image_id": 1, "bleu": [1, 2]}', "bleu has 2 numbers, expected 10"),
        ('{"image_id": 1, "ratios": {"x": 3}}', "holds no tallies"),
        ('{"image_id": 1}\n{"image_id": 1}', "names an image twice"),
    ],
)
def test_files_that_hold_something_else(tmp_path, text, message):
    file = tmp_path / "x.images.jsonl"
    file.write_text(text)
    with pytest.raises(EvaluationError, match=message):
        read(file)


def test_a_measure_that_an_image_lacks_is_left_out():
    tallies = [Tally(1, {"a": (1.0, 2.0), "b": (1.0, 1.0)}), Tally(2, {"a": (3.0, 2.0)})]
    assert of(tallies, [1, 1]) == {"a": 1.0}
    assert json.loads(lines(tallies[1:])) == {"image_id": 2, "ratios": {"a": [3.0, 2.0]}}
