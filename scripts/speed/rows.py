"""One row of a benchmark each: a training step, a search, a cache, a folder of photos, cold start."""

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from captioner.data.cache import AnnotationCache
from captioner.data.pixels import read_batches
from captioner.language.vocabulary import END, PAD, START, Vocabulary
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.encoder import Encoder
from captioner.models.registry import build
from captioner.predict.predictor import Predictor
from captioner.search.beam import search
from captioner.store.checkpoint import Stored
from captioner.training import Objective
from captioner.training.precision import unsupported
from speed import plain
from speed.measure import Contestant, medians, peaks, replacements, settings

CONFIGS = Path(__file__).parents[2] / "configs" / "model"
WIDTH = 1280  # of an annotation vector of EfficientNet-Lite
CAPTIONS = 5  # of an image
BATCH = 64
DESIGNS: dict[str, dict[str, Any]] = {
    "show-attend-tell": {},
    "luong-general": {"input_feeding": False},
}


def training(
    design: str,
    options: Any,
    photos: int = 16,
    cells: int = 49,
    words: int = 2500,
    longest: int = 20,
) -> dict[str, Any]:
    """Measure one training step of an untrained design of configs/model: forward, loss, backward.

    The step has B = ``photos``, L = ``cells`` and V = ``words``, and captions up to ``longest`` words.
    """
    torch.manual_seed(0)
    captioner, objective = untrained(design, words)
    captioner.to(options.device)
    tokens = random_captions(photos, words, longest).to(options.device)
    vectors = torch.randn(photos, cells, WIDTH, device=options.device)
    side = math.isqrt(cells)
    annotations = Annotations(vectors, (side, cells // side))

    def ours() -> Tensor:
        decoded = captioner.decoder(captioner.neck(annotations), tokens[..., :-1])
        return objective(decoded, tokens[..., 1:]).total

    def step(loss: Callable[[], Tensor]) -> None:
        torch.autograd.backward(loss())
        captioner.zero_grad()

    stochastic = getattr(objective, "doubly_stochastic", 0.0)
    tutorial = partial(plain.loss, captioner, vectors, tokens, stochastic)
    with replacements(captioner, enabled=False):
        expected = tutorial()
    torch.testing.assert_close(ours(), expected, atol=1e-4, rtol=1e-4)
    contestants = _contestants(captioner, options, partial(step, tutorial), partial(step, ours))
    taken, held = medians(contestants, options.rounds), peaks(contestants)
    return {
        "row": f"train {design}",
        "captions": photos * CAPTIONS,
        "L": cells,
        "V": words,
        "T": tokens.shape[-1] - 1,
        **_ratios(taken),
        "milliseconds": {name: round(1000 * value, 1) for name, value in taken.items()},
        "peak_megabytes": held,
    }


def untrained(design: str, words: int) -> tuple[Captioner, Objective]:
    """Return a design's model without dropout, and its objective."""
    base, differences = (
        yaml.safe_load((CONFIGS / f"{name}.yaml").read_text("utf-8"))
        for name in ("show-attend-tell", design)
    )
    config = base | differences
    config["decoder"]["init_args"] |= DESIGNS.get(design, {})
    vocabulary = Vocabulary([f"w{i}" for i in range(words - 4)])
    parts = {part: config[part] for part in ("encoder", "neck", "decoder")}
    model = Captioner.from_config(parts, vocabulary)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model.train(), build("objective", config["objective"])


def random_captions(photos: int, words: int, longest: int) -> Tensor:
    """Return captions of random words, (B, R, T), with start, end and padding.

    With ``longest`` 20, lengths are distributed as in Flickr8k, 10.7 ± 3.7 words.
    """
    generator = torch.Generator().manual_seed(0)
    drawn = (10.7 + 3.7 * torch.randn(photos * CAPTIONS, generator=generator)) * longest / 20
    sizes = drawn.round().clamp(4, longest).long().view(photos, -1).sort(1, descending=True).values
    tokens = torch.full((*sizes.shape, int(sizes.max()) + 2), PAD)
    for row, size in zip(tokens.flatten(0, 1), sizes.flatten().tolist(), strict=True):
        row[0], row[size + 1] = START, END
        row[1 : size + 1] = torch.randint(END + 1, words, (size,), generator=generator)
    return tokens


def captioning(
    name: str, stored: Stored, vectors: Tensor, options: Any, beam_size: int, batch: int = BATCH
) -> dict[str, Any]:
    """Measure the search for captions from annotation vectors (N, L, D)."""
    captioner = stored.captioner.to(options.device).eval()
    # Tutorials do not avoid repeated words.
    decoding = stored.decoding.with_options({"beam_size": beam_size, "no_repeat": 0})
    side, some = math.isqrt(vectors.shape[1]), max(1, len(vectors) // 8)

    @torch.inference_mode()
    def ours() -> list[list[int]]:
        found = []
        for part in torch.split(vectors, batch):
            annotations = captioner.neck(Annotations(part, (side, side)))
            found += [best[0].tokens for best in search(captioner.decoder, annotations, decoding)]
        return found

    tutorial = partial(plain.beam, captioner, vectors[:some], decoding)
    with replacements(captioner, enabled=False):
        expected = tutorial()
    if ours()[:some] != expected:
        raise AssertionError("the tutorial's code and the package found different captions")
    contestants = _contestants(captioner, options, tutorial, ours)
    taken, held = medians(contestants, options.rounds), peaks(contestants)
    taken["plain_float32"] *= len(vectors) / some
    return {
        "row": f"caption {name}",
        "beam": beam_size,
        "batch": batch,
        "photos": len(vectors),
        **_ratios(taken),
        "images_per_second": _rates(taken, len(vectors)),
        "peak_megabytes": held,
    }


def _contestants(
    model: nn.Module, options: Any, tutorial: Callable[[], Any], ours: Callable[[], Any]
) -> dict[str, Contestant]:
    """Return the tutorial's code and ours in every setting, also in bfloat16 if supported."""
    found = {"plain_float32": Contestant(tutorial, partial(replacements, model, enabled=False))}
    for name, setting in settings(model, options.without).items():
        precise = name if name.startswith("without_") else f"{name}_float32"
        found[precise] = Contestant(ours, setting)
    device = torch.device(options.device).type
    if not unsupported("bf16-mixed", device):
        half = partial(_in_bfloat16, model, device)
        found["ours_bfloat16"] = Contestant(ours, half)
    return found


@contextmanager
def _in_bfloat16(model: nn.Module, device: str) -> Iterator[None]:
    with replacements(model), torch.autocast(device, torch.bfloat16):
        yield


def _ratios(seconds: dict[str, float]) -> dict[str, float]:
    ours = [name for name in seconds if name.startswith(("ours", "fast_off"))]
    return {
        f"times_plain_{n.removeprefix('ours_')}": round(seconds["plain_float32"] / seconds[n], 2)
        for n in ours
    }


def _rates(seconds: dict[str, float], photos: int) -> dict[str, float]:
    return {name: round(photos / value, 1) for name, value in seconds.items()}


def cache(name: str, encoder: Encoder, paths: list[str], options: Any) -> dict[str, Any]:
    """Measure filling an annotation cache from JPEG files."""

    def fill() -> None:
        with tempfile.TemporaryDirectory() as folder:
            AnnotationCache.open(Path(folder), paths, encoder)

    return {"row": f"cache {name}", **_from_files(encoder, encoder, paths, fill, options)}


def folder(
    name: str, predictor: Predictor, paths: list[str], options: Any, beam_size: int
) -> dict[str, Any]:
    """Measure captioning of JPEG files."""
    decoding = predictor.decoding.with_options({"beam_size": beam_size})

    def caption() -> None:
        for _ in predictor.captions(paths, decoding, BATCH):
            pass

    model = predictor.captioner
    compared = _from_files(model, model.encoder, paths, caption, options)
    return {"row": f"files {name}", "beam": beam_size, **compared}


def _from_files(
    model: nn.Module, encoder: Encoder, paths: list[str], work: Callable[[], None], options: Any
) -> dict[str, Any]:
    """Compare work on files with the plain CNN on the same photos, decoded and in memory."""
    pixels = [batch.pixels for batch in read_batches(paths, BATCH, encoder.preprocessing)]

    @torch.inference_mode()
    def bare() -> None:
        for batch in pixels:
            encoder(batch)

    contestants = {"bare_cnn": Contestant(bare, partial(replacements, model, enabled=False))}
    contestants |= {n: Contestant(work, s) for n, s in settings(model, options.without).items()}
    taken = medians(contestants, options.rounds)
    rates = _rates(taken, len(paths))
    return {"photos": len(paths), "images_per_second": rates, "peak_megabytes": peaks(contestants)}


def cold(photo: str, model: str, options: Any) -> dict[str, Any]:
    """Measure whole commands in new processes."""

    def command(*line: str) -> Contestant:
        whole = [sys.executable, "-m", "captioner", *line]
        return Contestant(partial(subprocess.run, whole, check=True, capture_output=True))

    contestants = {
        "help": command("--help"),
        "caption": command("caption", photo, "--model", model),
    }
    taken = medians(contestants, options.rounds)
    return {"row": "cold", "seconds": {name: round(value, 2) for name, value in taken.items()}}
