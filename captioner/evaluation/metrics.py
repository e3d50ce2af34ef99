"""Caption metrics: BLEU-1..4, ROUGE-L, CIDEr-D and METEOR 1.5, computed by pycocoevalcap.

The Penn Treebank tokenizer and METEOR are Java programs. With a working ``java`` the scores equal
those of coco-caption. Without it, NLTK tokenizes the captions, which gives slightly different scores,
and METEOR is left out.
"""

import logging
import re
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pycocoevalcap.bleu.bleu_scorer import BleuScorer
from pycocoevalcap.cider.cider import Cider
from pycocoevalcap.rouge.rouge import Rouge

from captioner.data.readers.text_files import MALFORMED, parse_id, parse_json, read_json, read_lines
from captioner.errors import EvaluationError
from captioner.evaluation.diversity import Diversity, diversity
from captioner.evaluation.image_statistics import ORDER, ImageStatistics, statistics
from captioner.evaluation.java import JavaError, meteor_statistics, ptb_words
from captioner.language.vocabulary import Tokenizer, unspaced

Id = int | str
Words = Callable[[str], Sequence[str]]
Result = TypeVar("Result")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """Corpus scores in percent. CIDEr-D may exceed 100, as in papers.

    CIDEr-D takes its document frequencies from the *scored* images. Scores of different numbers of
    images are therefore not comparable, and the score of a single image is 0.
    """

    bleu_1: float
    bleu_2: float
    bleu_3: float
    bleu_4: float
    rouge_l: float
    cider: float
    tokenizer: str  # ``ptb``, or without Java the name of another one, such as ``nltk-treebank``
    images: int  # number of images scored
    meteor: float | None = None  # None without Java
    missing: int = 0  # number of images with references but without a candidate
    diversity: Diversity | None = None  # of several captions per image, where there are any

    def as_dict(self) -> dict[str, Any]:
        """All fields, ready for JSON; ``diversity`` only if it is given."""
        fields = asdict(self)
        return fields if self.diversity else {k: v for k, v in fields.items() if k != "diversity"}


class CaptionScorer:
    """Score candidate captions against references.

        scorer = CaptionScorer({"dog.jpg": ["a dog is running", "the dog runs"]})
        scorer.score({"dog.jpg": "a dog runs"}).bleu_4  # percent

    Args:
        references: image id → reference captions.
        java: whether to use Java's tokenizer and METEOR. None uses Java if it is installed, and logs a
            warning if it fails.
        tokenizer: splits a caption into words if Java is not used.

    Raises:
        EvaluationError: an image has no reference caption.
    """

    def __init__(
        self,
        references: Mapping[Id, Sequence[str]],
        *,
        java: bool | None = None,
        tokenizer: Words | None = None,
    ) -> None:
        empty = [image for image, texts in references.items() if not any(map(str.strip, texts))]
        if empty:
            raise EvaluationError(f"images without a reference caption: {_some(empty)}")
        self.references = references
        self._java = shutil.which("java") is not None if java is None else java
        if unspaced(" ".join(texts[0] for texts in references.values())):
            self._java = False  # METEOR and the PTB tokenizer need spaces between words
        self._strict = java is True
        self._split: Words = tokenizer or Tokenizer()
        self._split_name = str(getattr(self._split, "name", "custom"))

    def score(self, candidates: Mapping[Id, str]) -> Scores:
        """Score one caption, which may be empty, for each image or for some of them.

        Raises:
            EvaluationError: no candidates, an image without references, or ``java=True`` and Java
                fails.
        """
        return self.per_image_scores(candidates)[0]

    def per_image_scores(
        self, candidates: Mapping[Id, str]
    ) -> tuple[Scores, list[ImageStatistics]]:
        """Return the scores, as ``score``, and what each image contributes to them."""
        if not candidates:
            raise EvaluationError("nothing to score: expected a caption of at least one image")
        if unknown := [image for image in candidates if image not in self.references]:
            raise EvaluationError(
                f"captioned images without references: {_some(unknown)}; there are references of "
                f"{_some(self.references)}"
            )
        return self._falling_back(lambda: self._score(candidates))

    def diversity(self, captions: Mapping[Id, Sequence[str]]) -> Diversity | None:
        """Measure the diversity of captions of images with references; None if no image has several.

        CIDEr takes its document frequencies from the references of all these images.
        """
        several = {image: texts for image, texts in captions.items() if len(texts) > 1}
        if not several:
            return None
        references = {image: self.references[image] for image in captions}
        return self._falling_back(lambda: diversity(self._words(several), self._words(references)))

    def _falling_back(self, compute: Callable[[], Result]) -> Result:
        """Compute something with Java, or without it if Java fails and was not asked for."""
        try:
            return compute()
        except JavaError as error:
            if self._strict:
                raise
            logger.warning("%s; scoring with %s words and without METEOR", error, self._split_name)
            self._java = False
            return compute()

    def _words(self, captions: Mapping[Id, Sequence[str]]) -> dict[Id, list[list[str]]]:
        lines = iter(self._tokenize([text for texts in captions.values() for text in texts]))
        return {image: [next(lines).split() for _ in texts] for image, texts in captions.items()}

    def _score(self, candidates: Mapping[Id, str]) -> tuple[Scores, list[ImageStatistics]]:
        texts = [text for image in candidates for text in self.references[image]]
        lines = iter(self._tokenize(texts))
        references = {image: [next(lines) for _ in self.references[image]] for image in candidates}
        if not any(map(any, references.values())):
            raise EvaluationError(f"the references of {_some(references)} have no words")
        words = self._tokenize(list(candidates.values()))
        tokenized = {image: [line] for image, line in zip(candidates, words, strict=True)}
        bleu = BleuScorer(n=ORDER)
        for image, [line] in tokenized.items():
            bleu += (line, references[image])
        _, rouge = Rouge().compute_score(references, tokenized)
        _, cider = Cider().compute_score(references, tokenized)
        meteor = meteor_statistics(words, list(references.values())) if self._java else None
        images = [
            ImageStatistics(
                image,
                {"rouge_l": (100 * float(rouge[i]), 1.0), "cider": (100 * float(cider[i]), 1.0)},
                caption,
                _bleu_counts(bleu.ctest[i]),
                meteor[i] if meteor else None,
            )
            for i, (image, caption) in enumerate(candidates.items())
        ]
        once = np.ones((1, len(images)))
        values: Any = {name: float(of(once)[0]) for name, of in statistics(images).items()}
        missing = len(self.references) - len(candidates)
        tokenizer = "ptb" if self._java else self._split_name
        return Scores(**values, tokenizer=tokenizer, images=len(images), missing=missing), images

    def _tokenize(self, captions: Sequence[str]) -> list[str]:
        if self._java:
            return ptb_words(captions)
        return [" ".join(self._split(caption)) for caption in captions]


def _bleu_counts(counts: Mapping[str, Any]) -> tuple[int, ...]:
    """Return an image's counts for BLEU; the shorter of two equally close references counts."""
    length = counts["testlen"]
    closest = min((abs(reference - length), reference) for reference in counts["reflen"])[1]
    return (length, closest, *counts["correct"], *counts["guess"])


_RESULTS = 'COCO results, [{"image_id", "caption"}], or JSON lines of {"image", "caption"}'


def evaluate_files(
    results: str | Path, references: str | Path, *, java: bool | None = None
) -> Scores:
    """Score a results file against a COCO captions file.

    Results may name an image by its id or by its file name, with as many folders as distinguish it. The
    first caption of an image is scored; ``Scores.diversity`` is that of all.

    Raises:
        CaptionerError: as ``read_captions``, ``read_references`` and ``CaptionScorer.score``.
    """
    references_by_id, ids = _read_coco(references)
    candidates: dict[Id, list[str]] = {}
    for image, captions in read_captions(results).items():
        known = (ids[end] for end in _ends(str(image)) if end in ids)
        image_id = image if image in references_by_id else next(known, image)
        if image_id in candidates:
            raise EvaluationError(f"{results} captions image {image_id!r} twice")
        candidates[image_id] = captions
    scorer = CaptionScorer(references_by_id, java=java)
    scores = scorer.score({image: captions[0] for image, captions in candidates.items()})
    return replace(scores, diversity=scorer.diversity(candidates))


def read_captions(path: str | Path) -> dict[Id, list[str]]:
    """Read captions by image from COCO results JSON, or from the JSON lines of ``captioner caption``.

    The key is the ``image_id``, or without one the file name in ``image``, with its folders. Records of
    images that could not be read (``{"image", "error"}``) are left out with a warning.

    Raises:
        EvaluationError: the file has another form, or names an image twice.
        DataError: the file cannot be read.
    """
    lines = [line for line in read_lines(Path(path)) if line]
    text = "\n".join(lines)
    captions: dict[Id, list[str]] = {}
    failed = []
    where = "the JSON"
    try:
        records = parse_json(text if text.startswith("[") else "[" + ",\n".join(lines) + "]")
        for number, record in enumerate(records, start=1):
            where = f"record {number}"
            image = parse_id(record.get("image_id", record.get("image")))
            if "caption" not in record and "error" in record:
                failed.append(image)
                continue
            texts = record.get("captions", [record["caption"]])
            if image in captions:
                raise ValueError(f"image {image!r} for the second time")
            if not texts or not all(isinstance(text, str) for text in texts):
                raise TypeError(f"its captions are {texts!r:.80}")
            captions[image] = texts
    except MALFORMED as error:
        raise EvaluationError(
            f"{path}: {where} is malformed ({error}); expected {_RESULTS}"
        ) from error
    if not captions:
        raise EvaluationError(f"{path} holds no caption; expected {_RESULTS}")
    if failed:
        logger.warning("%s: left out images that have no caption: %s", path, _some(failed))
    return captions


def read_references(path: str | Path) -> dict[Id, list[str]]:
    """Read reference captions by image id from COCO captions JSON; errors as ``read_captions``."""
    return _read_coco(path)[0]


def _read_coco(path: str | Path) -> tuple[dict[Id, list[str]], dict[str, Id]]:
    """Return the references by image id, and the image ids by ends of file names that are unique."""
    references: dict[Id, list[str]] = defaultdict(list)
    ids: dict[str, set[Id]] = defaultdict(set)
    try:
        content = read_json(Path(path))
        for annotation in content["annotations"]:
            references[parse_id(annotation["image_id"])].append(annotation["caption"].strip())
        for image in content["images"]:
            for end in _ends(image.get("file_name", "")):
                ids[end].add(parse_id(image["id"]))
        if not references:
            raise ValueError("it is empty")
    except MALFORMED as error:
        raise EvaluationError(
            f"{path} has no reference captions ({error}); expected COCO captions, "
            '{"images": […], "annotations": [{"image_id", "caption"}]}'
        ) from error
    return dict(references), {end: min(same) for end, same in ids.items() if len(same) == 1}


def _ends(name: str) -> list[str]:
    """Return "a/b/dog.jpg", "b/dog.jpg" and "dog.jpg" for the first of them."""
    parts = re.split(r"[/\\]", name)
    return ["/".join(parts[first:]) for first in range(len(parts))]


def _some(images: Iterable[object]) -> str:
    """List the first few images for a message."""
    names = [repr(image) for image in images]
    rest = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + rest
