"""How fast: training and captioning against a tutorial's code and against bare matrix products.

python scripts/benchmark.py train --output docs/results/speed-train.json
python scripts/benchmark.py caption --runs RUN… --data.root DIR --output docs/results/speed-caption.json

Every row has two yardsticks, measured in the same run, in turn: ``plain``, the same model as tutorials
write it (scripts/plain.py), whose numbers are asserted to be the same; and ``floor``, the matrix
products that the real words need, called bare. Times are medians of rounds; a row says

- ``times_plain``: how many times as fast as ``plain`` in float32;
- ``of_floor``: floor / ours, 1 being nothing but the products, in the same precision.

Training rows: untrained parameters, 16 pictures × 5 captions of 4 to 20 words, their lengths spread like
Flickr8k's, padded as a batch is; forward, loss, backward; no dropout, which ``plain`` has not.
Captioning rows: trained models on real photos, from annotation vectors already computed.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import plain
import torch
import yaml
from torch import Tensor, nn

from captioner import checkpoint
from captioner.data.pixels import read_batches
from captioner.data.readers import read
from captioner.decoding import search
from captioner.files import write_text
from captioner.models.annotations import Annotations
from captioner.models.captioner import Captioner
from captioner.models.lstm import LSTMDecoder
from captioner.models.luong import LuongDecoder
from captioner.models.registry import build
from captioner.text import END, PAD, START, Vocabulary
from captioner.training.objectives import Objective
from captioner.provenance import provenance

CONFIGS = Path(__file__).parents[1] / "configs" / "model"
WIDTH, WORDS = 1280, 2500  # of an annotation vector of the encoder; of Flickr8k's vocabulary
PHOTOS, CAPTIONS, CELLS = 16, 5, 49
LONGEST = 20

# (batch, m, k, n): so many products of (m, k) and (k, n).
Product = tuple[int, int, int, int]


class Floor:
    """Matrix products called bare, at most as many operands in memory as there are shapes.

    Args:
        products: what to multiply, in order.
        dtype: of the operands.
        device: where.
        backward: whether each is followed by the two products of its gradient.
    """

    def __init__(
        self, products: Sequence[Product], dtype: torch.dtype, device: str, backward: bool
    ) -> None:
        if backward:
            products = [
                each
                for b, m, k, n in products
                for each in ((b, m, k, n), (b, m, n, k), (b, k, m, n))
            ]
        made: dict[Product, tuple[Tensor, Tensor, Tensor]] = {}
        for shape in products:
            b, m, k, n = shape
            if shape not in made:
                sizes = ((b, m, k), (b, k, n), (b, m, n))
                parts = [torch.randn(s if b > 1 else s[1:], device=device) for s in sizes]
                made[shape] = tuple(part.to(dtype) for part in parts)  # type: ignore[assignment]
        self.calls = [made[shape] for shape in products]
        self.flops = sum(2 * b * m * k * n for b, m, k, n in products)

    def __call__(self) -> None:
        """All of them."""
        for one, other, out in self.calls:
            torch.matmul(one, other, out=out)


def products(captioner: Captioner, pictures: int, cells: int, rows: Sequence[int]) -> list[Product]:
    """What a model multiplies for so many pictures when ``rows[t]`` captions have a word t.

    Args:
        captioner: refiner and decoder.
        pictures: B.
        cells: L.
        rows: at every step.
    """
    decoder: Any = captioner.decoder
    found: list[Product] = []

    def linear(count: int, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            found.append((1, count, module.in_features, module.out_features))

    for module in captioner.refiner.modules():
        linear(pictures * cells, module)
    words = sum(rows)
    if isinstance(decoder, LSTMDecoder | LuongDecoder):
        for mlp in (decoder.start_hidden, decoder.start_cell):
            linear(pictures, mlp[0])
        score = decoder.attention.score
        linear(pictures * cells, score.key)
        four, inputs = (
            decoder.lstm.weight_ih.shape
            if hasattr(decoder.lstm, "weight_ih")
            else (decoder.lstm.weight_ih_l0.shape)
        )
        hidden, width = four // 4, decoder.attention.out_dim
        at_once = isinstance(decoder, LuongDecoder) and not decoder.input_feeding
        if at_once:
            found.append((1, words, inputs, four))
        for count in rows:
            if not at_once:
                found.append((1, count, inputs, four))
            found.append((1, count, hidden, four))
        for count in [words] if at_once else rows:
            linear(count, score.query)
            each = -(-count // pictures)
            if hasattr(score, "energy"):
                linear(count * cells, score.energy)
            else:
                found.append((pictures, each, hidden, cells))
            found.append((pictures, each, cells, width))
        for name in ("output_hidden", "output_context", "attentional"):
            if hasattr(decoder, name):
                linear(words, getattr(decoder, name))
    else:
        linear(pictures * cells, decoder.memory)
        length, most = len(rows), rows[0]
        each = -(-words // pictures)
        for layer in decoder.layers:
            own, other = layer.self_attention, layer.attention
            for module in (own.query, own.key_value, own.output, other.query, other.output):
                linear(words, module)
            for module in (other.key, other.value):
                linear(pictures * cells, module)
            part = own.query.in_features // own.heads
            for count in (length, -length):
                shape = (part, length) if count > 0 else (length, part)
                found.append((most * own.heads, length, *shape))
            part = other.query.out_features // other.heads
            found.append((pictures * other.heads, each, part, cells))
            found.append((pictures * other.heads, each, cells, part))
            for module in layer.feed_forward:
                linear(words, module)
    linear(words, decoder.output)
    return found


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Nothing for float32."""
    return nullcontext() if dtype == torch.float32 else torch.autocast(device, dtype)


def medians(
    contestants: dict[str, Callable[[], Any]], rounds: int, device: str
) -> dict[str, float]:
    """The median seconds of each; every round takes all in turn, and the first is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            began = time.perf_counter()
            work()
            if device == "cuda":
                torch.cuda.synchronize()
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def compared(contestants: dict[str, Callable[[], Any]], rounds: int, device: str) -> dict[str, Any]:
    """Medians in milliseconds, and the ratios."""
    found = medians(contestants, rounds, device)
    ratios = {}
    for kind in ("float32", "bfloat16"):
        if f"ours_{kind}" in found:
            ours = found[f"ours_{kind}"]
            ratios[f"times_plain_{kind}"] = round(found["plain_float32"] / ours, 2)
            ratios[f"of_floor_{kind}"] = round(found[f"floor_{kind}"] / ours, 3)
    return {
        **ratios,
        "milliseconds": {name: round(1000 * value, 1) for name, value in found.items()},
    }


def lengths(count: int, longest: int, generator: torch.Generator) -> list[int]:
    """As many as captions have words: mean 10.7 and deviation 3.7, as in Flickr8k."""
    drawn = 10.7 + 3.7 * torch.randn(count, generator=generator)
    return [int(value) for value in drawn.round().clamp(4, longest)]


def caption_tokens(photos: int, words: int, longest: int) -> Tensor:
    """Captions of random words, (B, R, T), as a batch has them: with start, end and padding, the
    longest caption of a picture first."""
    generator = torch.Generator().manual_seed(0)
    drawn = lengths(photos * CAPTIONS, longest, generator)
    sizes = torch.tensor(drawn).view(photos, -1).sort(1, descending=True).values
    tokens = torch.full((*sizes.shape, max(drawn) + 2), PAD)
    for row, size in zip(tokens.flatten(0, 1), sizes.flatten().tolist(), strict=True):
        row[0], row[size + 1] = START, END
        row[1 : size + 1] = torch.randint(END + 1, words, (size,), generator=generator)
    return tokens


def captioner_of(design: str, words: int, **decoder: Any) -> tuple[Captioner, Objective]:
    """A design's untrained model without dropout, and its objective."""
    config = yaml.safe_load((CONFIGS / f"{design}.yaml").read_text("utf-8"))
    config["decoder"]["init_args"] |= decoder
    vocabulary = Vocabulary([f"w{i}" for i in range(words - 4)])
    made = Captioner.from_config(
        {part: config[part] for part in ("encoder", "refiner", "decoder")}, vocabulary
    )
    for module in made.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return made.train(), build("objective", config["objective"])


def training_row(
    design: str,
    device: str,
    rounds: int,
    photos: int = PHOTOS,
    cells: int = CELLS,
    words: int = WORDS,
    longest: int = LONGEST,
    **decoder: Any,
) -> dict[str, Any]:
    """One training step of a design."""
    torch.manual_seed(0)
    captioner, objective = captioner_of(design, words, **decoder)
    captioner.to(device)
    tokens = caption_tokens(photos, len(captioner.vocabulary), longest).to(device)
    side = int(cells**0.5)
    vectors = torch.randn(photos, cells, WIDTH, device=device)
    annotations = Annotations(vectors, (side, cells // side))
    stochastic = getattr(objective, "doubly_stochastic", 0.0)
    detail = "shown" if objective.needs_weights else "none"

    def ours() -> Tensor:
        decoded = captioner(annotations, tokens[..., :-1], detail)
        return objective(decoded, tokens[..., 1:]).total

    def step(loss: Callable[[], Tensor], dtype: torch.dtype) -> None:
        captioner.zero_grad()
        with autocast(device, dtype):
            value = loss()
        value.backward()

    tutorial = partial(plain.loss, captioner, vectors, tokens, stochastic)
    torch.testing.assert_close(ours(), tutorial(), atol=1e-4, rtol=1e-4)
    there = (tokens[..., 1:] != PAD).flatten(0, 1)
    rows = [int(count) for count in there.sum(0) if count]
    bare = products(captioner, photos, cells, rows)
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    contestants: dict[str, Callable[[], Any]] = {
        "plain_float32": partial(step, tutorial, torch.float32)
    }
    for kind, dtype in kinds.items():
        contestants[f"ours_{kind}"] = partial(step, ours, dtype)
        contestants[f"floor_{kind}"] = Floor(bare, dtype, device, backward=True)
    found = compared(contestants, rounds, device)
    flops = Floor(bare, torch.float32, device, backward=True).flops
    return {
        "row": f"train {design}",
        "captions": photos * CAPTIONS,
        "L": cells,
        "V": words,
        "T": tokens.shape[-1] - 1,
        "words": sum(rows),
        "gigaflop": round(flops / 1e9, 1),
        **found,
    }


def captioning_row(
    run: Path, vectors: Tensor, device: str, rounds: int, beam_size: int, some: int, batch: int = 64
) -> dict[str, Any]:
    """Captions of photos from their annotation vectors; ``plain`` is asked for some of them only."""
    stored = checkpoint.load(run)
    captioner = stored.captioner.to(device).eval()
    decoding = stored.decoding.with_options({"beam_size": beam_size})
    side = int(vectors.shape[1] ** 0.5)

    @torch.inference_mode()
    def ours(dtype: torch.dtype = torch.float32) -> list[list[int]]:
        found = []
        for part in vectors.split(batch):
            with autocast(device, dtype):
                annotations = captioner.refiner(Annotations(part, (side, side)))
                best = search(captioner.decoder, annotations, decoding)
            found += [hypotheses[0].tokens for hypotheses in best]
        return found

    def tutorial() -> list[list[int]]:
        return plain.beam(captioner, vectors[:some], decoding)

    written = ours()
    assert tutorial() == written[:some], "the tutorial's captions are not ours"
    # A search must go on for a word after its best caption: what the longest of them needs.
    steps = [len(tokens) + 1 for tokens in written]
    rows = [beam_size * sum(size > t for size in steps) for t in range(max(steps))]
    bare = products(captioner, len(vectors), vectors.shape[1], rows)
    contestants: dict[str, Callable[[], Any]] = {"plain_float32": tutorial}
    for kind, dtype in {"float32": torch.float32, "bfloat16": torch.bfloat16}.items():
        contestants[f"ours_{kind}"] = partial(ours, dtype)
        contestants[f"floor_{kind}"] = Floor(bare, dtype, device, backward=False)
    taken = medians(contestants, rounds, device)
    taken["plain_float32"] *= len(vectors) / some
    other = ours(torch.bfloat16)
    return {
        "row": f"caption {run.name}",
        "beam": beam_size,
        "photos": len(vectors),
        "batch": batch,
        **{
            f"times_plain_{kind}": round(taken["plain_float32"] / taken[f"ours_{kind}"], 2)
            for kind in ("float32", "bfloat16")
        },
        **{
            f"of_floor_{kind}": round(taken[f"floor_{kind}"] / taken[f"ours_{kind}"], 3)
            for kind in ("float32", "bfloat16")
        },
        "images_per_second": {
            name: round(len(vectors) / value, 1) for name, value in taken.items()
        },
        "same_in_bfloat16": sum(a == b for a, b in zip(written, other, strict=True)),
    }


def train(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The three designs at the sizes of the Flickr8k configuration, and how cost grows."""
    device, rounds = options.device, options.rounds
    rows = []

    def add(design: str, **sizes: Any) -> None:
        rows.append(training_row(design, device, rounds, **sizes))
        print(json.dumps(rows[-1]), flush=True)

    without_feeding = {"input_feeding": False}
    for cells in (49, 196):
        add("show-attend-tell", cells=cells)
        add("luong-general", cells=cells, **without_feeding)
        add("transformer", cells=cells)
    if options.grow:
        for sizes in ({"photos": 32}, {"words": 10_000}, {"longest": 40}):
            for design, more in (("show-attend-tell", {}), ("transformer", {})):
                add(design, **sizes, **more)
    return rows


def caption(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every run, greedy and with beam 5."""
    records = [r for r in read("flickr8k", options.root) if r.split == "val"][: options.photos]
    rows = []
    for run in options.runs:
        encoder = checkpoint.load(run).captioner.encoder.to(options.device)
        with torch.inference_mode():
            paths = [record.path for record in records]
            batches = read_batches(paths, 64, encoder.preprocessing)
            vectors = torch.cat([encoder(b.pixels.to(options.device)).vectors for b in batches])
        for beam_size in (5, 1):
            rows.append(
                captioning_row(
                    run, vectors, options.device, options.rounds, beam_size, options.photos // 8
                )
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(required=True)
    parsers = {"train": parts.add_parser("train"), "caption": parts.add_parser("caption")}
    for name, part in parsers.items():
        part.set_defaults(measure={"train": train, "caption": caption}[name])
        part.add_argument("--device", default="cpu")
        part.add_argument("--rounds", type=int, default=7)
        part.add_argument("--output", type=Path)
    parsers["train"].add_argument("--grow", action="store_true", help="also how cost grows")
    parsers["caption"].add_argument("--runs", type=Path, nargs="+", required=True)
    parsers["caption"].add_argument("--data.root", dest="root", required=True)
    parsers["caption"].add_argument("--photos", type=int, default=256)
    options = parser.parse_args()
    rows = options.measure(options)
    if options.output:
        result = {"command": " ".join(["python", *sys.argv]), "rows": rows, **provenance()}
        write_text(options.output, json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
