"""Caption quality: BLEU-1..4, ROUGE-L, CIDEr-D and METEOR 1.5, with COCO's own scorers.

    scores = score({"dog.jpg": "a dog runs"}, {"dog.jpg": ["a dog is running", "the dog runs"]})
    scores.bleu_4, scores.cider, scores.meteor        # percent; METEOR is None without Java
    evaluate_files("results.json", "captions_val2014.json").as_dict()

``CaptionScorer`` keeps the references for many rounds of candidates; ``score`` is one round. The
metrics are pycocoevalcap's. Two of its parts are Java programs: the Penn Treebank tokenizer and
METEOR. With a working ``java`` both run, and the numbers equal those of coco-caption; without,
NLTK splits the words (close, but not the same numbers: ``Scores.tokenizer`` says which) and METEOR
is left out. No other METEOR is put in its place: NLTK's differs by tens of points.
"""

import dataclasses
import json
import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeGuard, TypeVar

from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioner.errors import EvaluationError
from captioner.evaluation.java import TIMEOUT, JavaError, meteor_score, ptb_words
from captioner.evaluation.tallies import ORDER, Tally
from captioner.text import Tokenizer

Id = TypeVar("Id", bound=Hashable)
Words = Callable[[str], Sequence[str]]


logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class Scores:
    """Corpus scores in percent; CIDEr-D, which may pass 100, the way papers print it.

    CIDEr weighs words by how few of the *scored* images mention them. So a score over 100 images
    does not compare with one over 5,000, and over a single image CIDEr is always 0.
    """

    bleu_1: float
    bleu_2: float
    bleu_3: float
    bleu_4: float
    rouge_l: float
    cider: float
    meteor: float | None  # None: no Java
    tokenizer: str  # "ptb", or the name of the tokenizer used without Java: "nltk-treebank"
    images: int  # scored
    missing: int = 0  # images with references but without a candidate

    def as_dict(self) -> dict[str, float | int | str | None]:
        """All fields, ready for JSON."""
        return dataclasses.asdict(self)


class CaptionScorer(Generic[Id]):
    """Scores candidates against references; each reference is tokenized once, when first needed.

    Args:
        references: image id → its captions.
        java: use Java's tokenizer and METEOR? None: if ``java`` is there and works, with a logged
            warning if it is there and fails. True: or raise an error. False: never start it.
        tokenizer: splits a caption into words when Java does not.
        timeout: seconds Java may take for each thousand captions.

    Raises:
        EvaluationError: an image has no reference, or a reference is not a string.
    """

    def __init__(
        self,
        references: Mapping[Id, Sequence[str]],
        *,
        java: bool | None = None,
        tokenizer: Words | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        for image, captions in references.items():
            if isinstance(captions, str) or not isinstance(captions, Iterable):
                _refuse(captions, "the references", image, "a list of strings")
            for caption in captions:
                if not isinstance(caption, str):
                    _refuse(caption, "a reference", image, "a string")
        empty = [image for image, texts in references.items() if not any(map(str.strip, texts))]
        if empty:
            raise EvaluationError(
                f"every image needs a reference caption; {len(empty)} have none: {_some(empty)}"
            )
        self.references = {image: list(texts) for image, texts in references.items()}
        self._java = shutil.which("java") is not None if java is None else java
        self._strict = java is True
        self._split: Words = Tokenizer() if tokenizer is None else tokenizer
        self._split_name = str(getattr(self._split, "name", "custom"))
        self._timeout = timeout
        self._tokenized: dict[Id, list[str]] = {}

    def score(self, candidates: Mapping[Id, str]) -> Scores:
        """Scores of one caption for each image; any subset of the images will do.

        An empty caption is legal and worth 0.

        Raises:
            EvaluationError: no candidates, images without references, a caption that is not a
                string, or ``java=True`` and Java fails.
        """
        return self.judge(candidates)[0]

    def judge(self, candidates: Mapping[Id, str]) -> tuple[Scores, list[Tally]]:
        """``score``, and what each image adds to it."""
        if not candidates:
            raise EvaluationError("nothing to score: expected a caption of at least one image")
        if unknown := [image for image in candidates if image not in self.references]:
            raise EvaluationError(
                f"{len(unknown)} of {len(candidates)} captioned images have no references: "
                f"{_some(unknown)}; the references are of images such as "
                f"{_some(self.references) or 'none'}"
            )
        for image, caption in candidates.items():
            if not isinstance(caption, str):
                _refuse(caption, "the caption", image, "a string")
        if self._java:
            try:
                return self._score(candidates)
            except JavaError as error:
                if self._strict:
                    raise EvaluationError(
                        f"{error}; mend or install Java, or score without it (java=False)"
                    ) from error
                logger.warning(
                    "%s; scoring with %s words and without METEOR", error, self._split_name
                )
                self._java = False
                self._tokenized.clear()
        return self._score(candidates)

    def _score(self, candidates: Mapping[Id, str]) -> tuple[Scores, list[Tally]]:
        new = [image for image in candidates if image not in self._tokenized]
        lines = iter(self._tokenize([text for image in new for text in self.references[image]]))
        for image in new:
            self._tokenized[image] = [next(lines) for _ in self.references[image]]
        truth = {image: self._tokenized[image] for image in candidates}
        given = self._tokenize(list(candidates.values()))
        if not any(map(any, truth.values())):
            raise EvaluationError(f"no reference holds a word, for instance of {_some(truth)}")

        generated = {image: [line] for image, line in zip(candidates, given, strict=True)}
        counted = BleuScorer(n=ORDER)
        for image, [line] in generated.items():
            counted += (line, truth[image])
        bleu, _ = counted.compute_score(option="closest")
        rouge, each_rouge = Rouge().compute_score(truth, generated)
        cider, each_cider = Cider().compute_score(truth, generated)
        meteor, each_meteor = None, None
        if self._java:
            meteor, each_meteor = meteor_score(given, list(truth.values()), self._timeout)
            meteor *= 100
        tallies = [
            Tally(
                image if _is_id(image) else str(image),
                {
                    "rouge_l": (100 * float(each_rouge[place]), 1.0),
                    "cider": (100 * float(each_cider[place]), 1.0),
                },
                caption,
                _counts(counted.ctest[place]),
                None if each_meteor is None else each_meteor[place],
            )
            for place, (image, caption) in enumerate(candidates.items())
        ]
        bleu_1, bleu_2, bleu_3, bleu_4 = (100 * float(value) for value in bleu)
        scores = Scores(
            bleu_1,
            bleu_2,
            bleu_3,
            bleu_4,
            rouge_l=100 * float(rouge),
            cider=100 * float(cider),
            meteor=meteor,
            tokenizer="ptb" if self._java else self._split_name,
            images=len(candidates),
            missing=len(self.references) - len(candidates),
        )
        return scores, tallies

    def _tokenize(self, captions: Sequence[str]) -> list[str]:
        """Each caption as words with a space between them."""
        if self._java:
            return ptb_words(captions, self._timeout)
        return [" ".join(self._split(caption)) for caption in captions]


def _counts(cooked: Mapping[str, Any]) -> tuple[int, ...]:
    """What an image adds to BLEU; of two references equally near in length the shorter counts."""
    length = cooked["testlen"]
    nearest = min((abs(reference - length), reference) for reference in cooked["reflen"])[1]
    return (length, nearest, *cooked["correct"], *cooked["guess"])


def score(
    candidates: Mapping[Id, str],
    references: Mapping[Id, Sequence[str]],
    *,
    java: bool | None = None,
    tokenizer: Words | None = None,
    timeout: float = TIMEOUT,
) -> Scores:
    """Scores ``candidates`` against ``references`` once: see :class:`CaptionScorer`."""
    scorer = CaptionScorer(references, java=java, tokenizer=tokenizer, timeout=timeout)
    return scorer.score(candidates)


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────

_RESULTS = 'COCO results, [{"image_id", "caption"}], or JSON lines of {"image", "caption"}'
_REFERENCES = 'COCO captions, {"images": […], "annotations": [{"image_id", "caption"}]}'


def evaluate_files(
    results: str | Path, references: str | Path, *, java: bool | None = None
) -> Scores:
    """Scores a results file against COCO captions JSON; ``missing`` counts images not captioned.

    Results may name an image by its id or by its file name; folders in front do not matter.

    Raises:
        EvaluationError: a file cannot be read or holds something else, the images do not belong
            together, or ``java=True`` and Java fails.
    """
    truth, names = _read_coco(references)
    candidates: dict[int | str, str] = {}
    for image, caption in read_results(results).items():
        known = image if image in truth else names.get(_basename(image), image)
        if known in candidates:
            raise EvaluationError(f"{results} captions image {known!r} twice: by id and by name")
        candidates[known] = caption
    return score(candidates, truth, java=java)


def read_results(path: str | Path) -> dict[int | str, str]:
    """Captions by image, from COCO results JSON or from the JSON lines of ``captioner caption``.

    An image goes by its ``image_id``, and without one by the file name in ``image``. Records of
    images that could not be read (``{"image", "error"}``) are left out, with a logged warning.

    Raises:
        EvaluationError: the file cannot be read, is not of this form, or names an image twice.
    """
    captions: dict[int | str, str] = {}
    failed, twice = [], []
    for number, record in enumerate(_load(path, _RESULTS, lines=True), start=1):
        image = record.get("image_id", record.get("image")) if isinstance(record, dict) else None
        if not _is_id(image):
            raise EvaluationError(f"{path}: record {number} names no image; expected {_RESULTS}")
        image = image if "image_id" in record else _basename(image)
        if "caption" not in record and "error" in record:
            failed.append(image)
        elif not isinstance(record.get("caption"), str):
            raise EvaluationError(f"{path}: record {number} has no caption; expected {_RESULTS}")
        elif image in captions:
            twice.append(image)
        else:
            captions[image] = record["caption"]
    if twice:
        raise EvaluationError(f"{path} captions an image twice, expected once: {_some(twice)}")
    if not captions:
        raise EvaluationError(f"{path} holds no caption; expected {_RESULTS}")
    if failed:
        logger.warning("%s: left out images that have no caption: %s", path, _some(failed))
    return captions


def read_references(path: str | Path) -> dict[int | str, list[str]]:
    """Reference captions by image id, from COCO captions JSON; images without any are left out.

    Raises:
        EvaluationError: the file cannot be read or is not of this form.
    """
    return _read_coco(path)[0]


def _read_coco(path: str | Path) -> tuple[dict[int | str, list[str]], dict[str, int | str]]:
    """References by image id, and the ids by file name where a name stands for one image only."""
    data = _load(path, _REFERENCES)
    data = data if isinstance(data, dict) else {}
    images, annotations = data.get("images"), data.get("annotations")
    if not isinstance(images, list) or not isinstance(annotations, list) or not annotations:
        raise EvaluationError(f"{path} holds no reference captions; expected {_REFERENCES}")
    references: dict[int | str, list[str]] = {}
    for number, record in enumerate(annotations, start=1):
        record = record if isinstance(record, dict) else {}
        image, caption = record.get("image_id"), record.get("caption")
        if not _is_id(image) or not isinstance(caption, str):
            what = "image_id" if isinstance(caption, str) else "caption"
            raise EvaluationError(
                f"{path}: annotation {number} has no {what}; expected {_REFERENCES}"
            )
        references.setdefault(image, []).append(caption)
    ids = defaultdict(set)
    for image in images:
        if isinstance(image, dict) and _is_id(image.get("id")):
            ids[_basename(image.get("file_name", ""))].add(image["id"])
    return references, {name: min(same) for name, same in ids.items() if len(same) == 1}


def _load(path: str | Path, expected: str, *, lines: bool = False) -> Any:
    """The JSON in a file; with ``lines``, what is no list is read as one value per line."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
        if lines and not text.lstrip().startswith("["):
            values = [line for line in text.split("\n") if line.strip()]
            text = "[" + ",\n".join(values) + "]"  # so that an error names the right line
        return json.loads(text)
    except OSError as error:
        raise EvaluationError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise EvaluationError(f"{path} is not JSON ({error}); expected {expected}") from error


def _is_id(image: object) -> TypeGuard[int | str]:
    return isinstance(image, int | str) and not isinstance(image, bool)


def _basename(image: int | str) -> str:
    return re.split(r"[/\\]", str(image))[-1]


def _some(images: Iterable[object], limit: int = 5) -> str:
    """The first few of ``images``, for a message."""
    names = [repr(image) for image in images]
    rest = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + rest


def _refuse(value: object, what: str, image: object, expected: str) -> NoReturn:
    kind = type(value).__name__
    raise EvaluationError(
        f"{what} of image {image!r} cannot be of type {kind}: expected {expected}"
    )
