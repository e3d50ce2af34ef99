"""The trainings behind each bundled model, read from recipes.toml."""

import tomllib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from captioner.search.options import Decoding

SIDE = 256  # pixels of the photos that all bundled models see
ENCODER_STEP = "fine-tuned"  # its encoder becomes the bundled one
# The search, tuned on the development split. Forbidding repeated bigrams ("a man and a man") improves
# every score.
SEARCH = Decoding(beam_size=5, length_penalty=0.9, no_repeat=2)


@dataclass(frozen=True)
class Recipe:
    """How a bundled model is made."""

    title: str  # of its card
    paper: str  # the source of the design
    steps: list[str]  # names in ``STEPS``; the best epoch of the last step is the model
    averaged: list[str] = field(
        default_factory=list
    )  # steps to average, if not the last step alone
    decoding: Decoding = SEARCH  # the search for captions

    @property
    def ends(self) -> list[str]:
        """Return the steps that the model is made from."""
        return self.averaged or self.steps[-1:]


_FILE: dict[str, Any] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
COMMON: list[str] = _FILE["common"].split()
STEPS: dict[str, str] = _FILE["steps"]
MEANS: dict[str, list[str]] = _FILE["means"]  # name of a model → steps whose weights are averaged
RECIPES = {
    name: Recipe(**about | {"decoding": SEARCH.with_options(about.get("decoding", {}))})
    for name, about in _FILE["models"].items()
}


@dataclass(frozen=True)
class Folders:
    """Where trainings read and write."""

    runs: Path = Path("runs/pretrained")
    root: Path = Path()  # Flickr8k as distributed
    coco: Path = Path()  # photos of COCO
    entities: Path = Path()  # Flickr30k Entities: boxes of the phrases of Flickr8k's captions


def options(step: str, folders: Folders) -> list[str]:
    """Return the options of a step for ``captioner fit``, in addition to ``COMMON``."""
    known = {name: str(path) for name, path in asdict(folders).items()}
    for name, text in _FILE["strings"].items():
        known[name] = text.format(**known)
    return STEPS[step].format(**known).split()
