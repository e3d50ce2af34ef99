"""Records → batches: vocabulary, annotation cache, shuffling and collation for Lightning."""

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import Float16, Float32, Int, UInt8
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from captioner import images
from captioner.data import shapes_folder
from captioner.data.features import AnnotationCache, CachingEncoder
from captioner.data.readers import READERS, read
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record, Records
from captioner.data.sentences import Spoken
from captioner.data.supervision import Supervision
from captioner.errors import DataError, ImageError, unknown
from captioner.text import PAD, Tokenizer, Vocabulary

_LOG = logging.getLogger(__name__)
_SIDE = re.compile(r"\b(left|right)", re.IGNORECASE)


def default_cache() -> Path:
    """``$CAPTIONER_CACHE``, or ``captioner`` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("CAPTIONER_CACHE") or f"{base}/captioner").expanduser()


@dataclass
class ShapesOptions:
    """The generated scenes of ``data.name: shapes``.

    Attributes:
        train: scenes to train on.
        val: scenes for development.
        test: scenes for the final test.
        image_size: side of a scene in pixels.
        max_objects: most objects in a scene.
        level: how hard they are: ``plain``, or ``varied`` with objects, textures and things partly
            behind others.
        seed: another seed gives other scenes.
    """

    train: int = 2000
    val: int = 200
    test: int = 200
    image_size: int = 224
    max_objects: int = 3
    level: str = "plain"
    seed: int = 0


class Batch(NamedTuple):
    """B pictures, each with R captions; either their annotation vectors or their pixels.

    Attributes:
        image_ids: one per picture.
        tokens: ``<start> words <end> <pad> …``; a picture with fewer captions has rows of ``<pad>``.
        vectors: cached annotation vectors, or None.
        grid: (rows, columns) of the cached feature map.
        pixels: images at the encoder's size, or None.
        masks: where attention is supervised, for every token the mask of the object that it names, which
            sums to 1; zeros where it names none.
    """

    image_ids: list[int | str]
    tokens: Int[Tensor, "B R T"]
    vectors: Float16[Tensor, "B L D"] | None
    grid: tuple[int, int]
    pixels: UInt8[Tensor, "B 3 H W"] | None
    masks: Float32[Tensor, "B R T L"] | None = None


class CaptionDataModule(pl.LightningDataModule):
    """Pictures with captions, ready to train on.

    With a frozen encoder, annotation vectors are computed once and kept on disk; later epochs, runs
    and models with the same encoder read them from there.

    Args:
        name: the data set: coco, flickr8k, flickr30k, karpathy, jsonl, csv, folder, or shapes
            (generated, needs no files); docs/data.md has them all.
        root: its folder, as downloaded; for shapes, where the scenes are written.
        batch_size: pictures per batch. A training step sees ``captions_per_image`` captions of each.
        captions_per_image: captions drawn of each picture per epoch; one with fewer gives all it has.
        max_words: a longer training caption is cut there, and not taught to end.
        min_count: a word seen less often in the training captions becomes ``<unk>``.
        mirror: probability of mirroring a training picture's annotations left to right. Pictures
            whose captions say left or right are never mirrored.
        cache: whether to keep the annotation vectors of a frozen encoder on disk.
        cache_dir: where; by default in the user's cache folder.
        test_split: the split that ``test`` and ``predict`` run on.
        num_workers: processes that read pictures where there is no cache.
        shapes: how the scenes of ``name: shapes`` are made.

    Raises:
        DataError: the data set is unknown, missing or broken, or has no training captions.
    """

    def __init__(
        self,
        name: str = "flickr8k",
        root: str | None = None,
        batch_size: int = 32,
        captions_per_image: int = 5,
        max_words: int = 24,
        min_count: int = 5,
        mirror: float = 0.0,
        cache: bool = True,
        cache_dir: str | None = None,
        test_split: str = TEST,
        num_workers: int = 0,
        shapes: ShapesOptions = ShapesOptions(),  # noqa: B008 - never changed
    ) -> None:
        super().__init__()
        for option, value in {
            "batch_size": batch_size,
            "captions_per_image": captions_per_image,
            "max_words": max_words,
            "min_count": min_count,
        }.items():
            if value < 1:
                raise DataError(f"data.{option} must be 1 or more, got {value}")
        self.batch_size, self.captions_per_image = batch_size, captions_per_image
        self.max_words, self.mirror, self.num_workers = max_words, mirror, num_workers
        self.cache_dir = Path(cache_dir).expanduser() if cache_dir else default_cache()
        self.cached, self.test_split, self.name = cache, test_split, name
        if test_split not in SPLITS:
            raise DataError(
                f"data.test_split is {test_split!r}; expected one of {', '.join(SPLITS)}"
            )
        # The folder of generated scenes, whose contents are known; None for photographs.
        self.scenes: Path | None = None
        if name == "shapes":
            self.scenes = _write_scenes(root, shapes, self.cache_dir)
            self.records = read("coco", self.scenes)
        elif name not in READERS:
            raise DataError(unknown("data set", name, [*READERS, "shapes"]))
        elif root is None:
            raise DataError(f"data set {name!r} needs its folder: give --data.root DIR")
        else:
            self.records = read(name, root)
        self.tokenizer = Tokenizer()
        self._spoken: dict[str, Spoken] = {}
        self.vocabulary = Vocabulary.build(self._captions(TRAIN), min_count)
        self._cache: AnnotationCache | None = None

    @property
    def words(self) -> list[str]:
        """The vocabulary's words, for the model to be built with."""
        return self.vocabulary.plain_words

    def of_split(self, split: str) -> Records:
        """The records of a split; DataError if there are none."""
        found = self.records.of_split(split)
        if not found:
            sizes = {s: len(self.records.of_split(s)) for s in SPLITS}
            there = ", ".join(f"{s} ({n:,})" for s, n in sizes.items() if n)
            raise DataError(
                f"data set {self.name!r} has no pictures in split {split!r}; it has {there}; "
                "for test and predict choose another with --data.test_split"
            )
        return found

    def references(self, split: str) -> dict[int | str, list[str]]:
        """The raw reference captions of a split's pictures, but those that the cache could not read."""
        return {
            r.image_id: list(r.captions) for r in self.of_split(split).take(self._usable(split))
        }

    def fill_cache(
        self, encoder: CachingEncoder, device: torch.device | str, progress: bool = True
    ) -> AnnotationCache:
        """Computes the annotation vectors of all pictures, unless they are on disk already."""
        self._cache = AnnotationCache.open(
            self.cache_dir / "annotations",
            list(self.records.paths),
            encoder,
            device=device,
            progress=_progress if progress else None,
        )
        return self._cache

    # Lightning's hooks. The encoder is the task's: what must be cached depends on it.

    def prepare_data(self) -> None:
        """Fills the cache once per machine, before any process opens it."""
        self._open_cache()

    def setup(self, stage: str) -> None:  # noqa: ARG002 - the same for every stage
        """Opens the cache."""
        if self._cache is None:
            self._open_cache()

    def _open_cache(self) -> None:
        assert self.trainer is not None
        task: Any = self.trainer.lightning_module
        encoder = task.captioner.encoder
        encoder.load_pretrained()
        if self.cached and not encoder.trainable:
            device = self.trainer.strategy.root_device
            self.fill_cache(encoder.to(device), device)
        self._preprocessing = encoder.preprocessing
        self._supervised: Callable[[Sequence[Record]], Supervision] | None = None
        if task.objective.needs_masks:
            device = self.trainer.strategy.root_device
            grid = _grid(encoder.to(device), device) if self._cache is None else self._cache.grid
            self._supervised = partial(Supervision, grid=grid)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled, in an order that depends on seed and epoch alone."""
        dataset = self._dataset(TRAIN)
        return self._loader(dataset, Shuffle(len(dataset), global_seed()), drop_last=False)

    def val_dataloader(self) -> DataLoader[Any]:
        """Every development picture once."""
        return self._loader(self._dataset(VAL))

    def test_dataloader(self) -> DataLoader[Any]:
        """Every picture of ``test_split`` once."""
        return self._loader(self._dataset(self.test_split))

    predict_dataloader = test_dataloader

    def _dataset(self, split: str) -> "CaptionDataset":
        usable = self._usable(split)
        records = self.of_split(split).take(usable)
        captions = self._captions(split).encoded(self.vocabulary, self.max_words, usable)
        source: Callable[[str], np.ndarray | Tensor]
        if self._cache is not None:
            source, grid = self._cache.__getitem__, self._cache.grid
        else:
            source, grid = partial(_pixels, preprocessing=self._preprocessing), (0, 0)
        return CaptionDataset(
            records,
            captions,
            source,
            grid,
            self.captions_per_image,
            self.mirror if split == TRAIN else 0.0,
            self._supervised(records) if self._supervised and split == TRAIN else None,
        )

    def _usable(self, split: str) -> list[int]:
        """The places in the split of the pictures that the cache could read."""
        failed: Mapping[str, str] = self._cache.failed if self._cache is not None else {}
        paths = self.of_split(split).paths
        return [place for place, path in enumerate(paths) if path not in failed]

    def _captions(self, split: str) -> Spoken:
        """The captions of a split, taken apart once."""
        if split not in self._spoken:
            self._spoken[split] = Spoken(self.of_split(split), self.tokenizer)
        return self._spoken[split]

    def _loader(
        self, dataset: "CaptionDataset", sampler: "Shuffle | None" = None, **options: Any
    ) -> DataLoader[Any]:
        return DataLoader(
            dataset,
            batch_size=self.batch_size,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=dataset.collate,
            # Its own: a loader that drew from the global generator would change what comes after.
            generator=torch.Generator().manual_seed(0),
            persistent_workers=self.num_workers > 0,
            **options,
        )


class Draw(NamedTuple):
    """A picture's place in its data set, and the seed of everything random about it this time."""

    place: int
    seed: int


class Shuffle(Sampler[Draw]):
    """All pictures in an order that depends on (seed, epoch) alone, so that a resumed run repeats it."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Lightning before every epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Draw]:
        rng = np.random.default_rng([self.seed, self.epoch])
        seeds = rng.integers(2**62, size=self.size)
        for place, seed in zip(rng.permutation(self.size), seeds, strict=True):
            yield Draw(int(place), int(seed))


class Item(NamedTuple):
    """One picture before collation."""

    image_id: int | str
    values: Tensor
    captions: list[list[int]]
    masks: list[np.ndarray] | None = None


class CaptionDataset(Dataset[Item | None]):
    """The pictures of one split with their captions as ids.

    Args:
        records: the pictures.
        captions: the ids of each one's captions.
        source: path → cached annotation vectors, or pixels.
        grid: (rows, columns) of the cached feature map; (0, 0) for pixels.
        rows: R, the number of captions per picture in a batch.
        mirror: probability of mirroring left to right.
        supervision: where the words of a caption are to look, if attention is supervised.
    """

    def __init__(
        self,
        records: Sequence[Record],
        captions: Sequence[list[list[int]]],
        source: Callable[[str], np.ndarray | Tensor],
        grid: tuple[int, int],
        rows: int,
        mirror: float,
        supervision: Supervision | None = None,
    ) -> None:
        self.supervision = supervision
        self.records, self.captions, self.source, self.grid = records, captions, source, grid
        self.rows = rows
        sided = [any(map(_SIDE.search, record.captions)) for record in records]
        self.mirror = [0.0 if said else mirror for said in sided]

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, draw: int | Draw) -> Item | None:
        """A picture; None, with a warning, if it cannot be read."""
        place, seed = draw if isinstance(draw, Draw) else (draw, 0)
        record, captions = self.records[place], self.captions[place]
        try:
            read = self.source(record.path)
        except ImageError as error:
            _LOG.warning("left out: %s", error)
            return None
        # A row of the cache is a view of the file: copied before anything else may touch it.
        values = read if isinstance(read, Tensor) else torch.from_numpy(np.array(read))
        if not isinstance(draw, Draw):
            return Item(record.image_id, values, captions[: self.rows])
        rng = np.random.default_rng(seed)
        mirrored = rng.random() < self.mirror[place]
        if mirrored:
            values = self._mirrored(values)
        chosen = rng.permutation(len(captions))[: self.rows]
        item = Item(record.image_id, values, [captions[i] for i in chosen])
        if self.supervision is None:
            return item
        masks = [self.supervision(record, int(i), captions[i]) for i in chosen]
        if mirrored:
            rows, columns = self.supervision.grid
            masks = [m.reshape(-1, rows, columns)[..., ::-1].reshape(m.shape) for m in masks]
        return item._replace(masks=masks)

    def _mirrored(self, values: Tensor) -> Tensor:
        if self.grid == (0, 0):  # pixels (3, H, W)
            return values.flip(-1)
        return values.view(*self.grid, -1).flip(1).flatten(0, 1)

    def collate(self, items: Sequence[Item | None]) -> Batch:
        """Pictures that could be read, as a batch."""
        read = [item for item in items if item is not None]
        if not read:  # each has been named; they cost only themselves
            nothing = torch.empty(0, 3, 1, 1, dtype=torch.uint8)
            return Batch([], torch.empty(0, self.rows, 2, dtype=torch.long), None, (0, 0), nothing)
        longest = max(len(caption) for item in read for caption in item.captions)
        tokens = torch.full((len(read), self.rows, longest), PAD)
        masks = None
        if self.supervision is not None:
            masks = torch.zeros(*tokens.shape, math.prod(self.supervision.grid))
        for b, item in enumerate(read):
            # The longest first: decoders leave rows out as captions end.
            order = sorted(range(len(item.captions)), key=lambda i: -len(item.captions[i]))
            for r, place in enumerate(order):
                caption = item.captions[place]
                tokens[b, r, : len(caption)] = torch.tensor(caption)
                if masks is not None and item.masks is not None:
                    masks[b, r, : len(caption)] = torch.from_numpy(item.masks[place].copy())
        values = torch.stack([item.values for item in read])
        cached = self.grid != (0, 0)
        return Batch(
            [item.image_id for item in read],
            tokens,
            values if cached else None,
            self.grid,
            None if cached else values,
            masks,
        )


def global_seed() -> int:
    """What ``seed_everything`` was called with; Lightning keeps it in the environment."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def _pixels(path: str, preprocessing: Any) -> UInt8[Tensor, "3 H W"]:
    size = (preprocessing.height, preprocessing.width)
    return images.to_tensor(images.load(path), size, preprocessing.interpolation)


def _grid(encoder: Any, device: torch.device) -> tuple[int, int]:
    """(rows, columns) of what an encoder gives, from a black picture."""
    size = encoder.preprocessing
    with torch.no_grad():
        black = torch.zeros(1, 3, size.height, size.width, dtype=torch.uint8, device=device)
        rows, columns = encoder(black).grid
    return rows, columns


def _write_scenes(root: str | None, options: ShapesOptions, cache_dir: Path) -> Path:
    """The folder of the scenes, written if they are not there."""
    sizes = {TRAIN: options.train, VAL: options.val, TEST: options.test}
    made = (options.image_size, options.max_objects, options.level, options.seed)
    name = "-".join(map(str, [*sizes.values(), *made]))
    folder = Path(root).expanduser() if root else cache_dir / "shapes" / name
    shapes_folder.write(
        folder,
        seed=options.seed,
        sizes=sizes,
        image_size=options.image_size,
        max_objects=options.max_objects,
        level=options.level,
        progress=lambda ids: _progress(list(ids), sum(sizes.values()), "drawing scenes"),
    )
    return folder


def _progress(
    items: Iterable[Any], total: int, title: str = "filling the annotation cache"
) -> Iterable[Any]:
    from rich.progress import track

    return track(items, description=title, total=total)
