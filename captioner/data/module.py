"""Records → batches: vocabulary, annotation cache, shuffling and collation for Lightning."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import DataLoader

from captioner import images, processes
from captioner.data import shapes_folder
from captioner.data.dataset import CaptionDataset, Variation
from captioner.data.features import AnnotationCache, CachingEncoder, Resized
from captioner.data.loading import TrainingLoader
from captioner.data.order import InOrder, Shuffled
from captioner.data.readers import READERS, read
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record, Records
from captioner.data.sentences import Spoken
from captioner.data.supervision import Supervision
from captioner.errors import DataError, unknown
from captioner.memory import give_back_memory
from captioner.text import Tokenizer, Vocabulary


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


class CaptionDataModule(pl.LightningDataModule):
    """Pictures with captions, ready to train on.

    With a frozen encoder, annotation vectors are computed once and kept on disk; later epochs, runs
    and models with the same encoder read them from there.

    Args:
        name: the data set: coco, flickr8k, flickr30k, karpathy, jsonl, csv, folder, or shapes
            (generated, needs no files); docs/data.md has them all.
        root: its folder, as downloaded; for shapes, where the scenes are written.
        batch_size: pictures per batch, of all processes together: a run learns the same on any number
            of them. A training step sees ``captions_per_image`` captions of each.
        captions_per_image: captions drawn of each picture per epoch; one with fewer gives all it has.
        max_words: a longer training caption is cut there, and not taught to end.
        min_count: a word seen less often in the training captions becomes ``<unk>``.
        mirror: probability of mirroring a training picture's annotations left to right. Pictures
            whose captions say left or right are never mirrored.
        crop: the least part of a training picture's area that is kept, cut out anywhere; 1 keeps the
            whole. It needs pixels: an encoder that learns, or ``cache`` images or false.
        cache: true keeps the annotation vectors of a frozen encoder on disk; images keeps the pictures
            at the encoder's size, for one that learns; false reads the files in every epoch.
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
        crop: float = 1.0,
        cache: bool | Literal["images"] = True,
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
        for option, part in {"mirror": mirror, "crop": crop}.items():
            if not 0 <= part <= 1 or (option == "crop" and part == 0):
                raise DataError(f"data.{option} must be between 0 and 1, got {part}")
        self.max_words, self.num_workers = max_words, num_workers
        self.variation = Variation(mirror, crop)
        self.cache_dir = Path(cache_dir).expanduser() if cache_dir else default_cache()
        self.cache, self.test_split, self.name = cache, test_split, name
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

    def in_order(self, captions: Mapping[int | str, str]) -> dict[int | str, str]:
        """The captions of pictures by image id, in the order of the records."""
        return {i: captions[i] for i in self.records.ids if i in captions}

    def fill_cache(
        self, encoder: CachingEncoder, device: torch.device | str, verify: bool = False
    ) -> AnnotationCache:
        """Computes the annotation vectors of all pictures, unless they are on disk already.

        With ``cache: images`` no vectors, but the pictures at the encoder's size.
        """
        self._cache = AnnotationCache.open(
            self.cache_dir / "annotations",
            list(self.records.paths),
            Resized(encoder.preprocessing) if self.cache == "images" else encoder,
            device=device,
            progress=_progress if processes.rank() == 0 else None,
            verify=verify,
        )
        return self._cache

    # Lightning's hooks. The encoder is the task's: what must be cached depends on it.

    def setup(self, stage: str) -> None:  # noqa: ARG002 - the same for every stage
        """Opens the cache; all processes fill together what is missing."""
        assert self.trainer is not None
        task: Any = self.trainer.lightning_module
        encoder = task.captioner.encoder
        encoder.load_pretrained()
        caches = self.caches(encoder.trainable)
        if self.variation.crop < 1 and caches and self.cache != "images":
            raise DataError(
                "data.crop needs pixels, and annotation vectors are cached: give --data.cache images"
            )
        if self._cache is None and caches:
            device = self.trainer.strategy.root_device
            self.fill_cache(encoder.to(device), device)
        self._preprocessing = encoder.preprocessing
        self._supervised: Callable[[Sequence[Record]], Supervision] | None = None
        if task.objective.needs_masks:
            device = self.trainer.strategy.root_device
            if self.variation.crop < 1:
                raise DataError(
                    "attention supervised by masks needs whole pictures: leave data.crop at 1"
                )
            vectors = None if self.cache == "images" else self._cache
            grid = _grid(encoder.to(device), device) if vectors is None else vectors.grid
            self._supervised = partial(Supervision, grid=grid)

    def caches(self, trainable: bool) -> bool:
        """Whether anything is kept, for an encoder that learns or not."""
        return self.cache == "images" or (bool(self.cache) and not trainable)

    def train_dataloader(self) -> DataLoader[Any]:
        """Shuffled, in an order that depends on seed and epoch alone."""
        dataset = self._dataset(TRAIN)
        order = Shuffled(dataset, self.batch_size, global_seed())
        loader = self._loader(dataset, order, TrainingLoader)
        assert isinstance(loader, TrainingLoader)
        loader.seen = self._seen
        return loader

    def val_dataloader(self) -> DataLoader[Any]:
        """Every development picture once."""
        return self._evaluation_loader(VAL)

    def test_dataloader(self) -> DataLoader[Any]:
        """Every picture of ``test_split`` once."""
        return self._evaluation_loader(self.test_split)

    predict_dataloader = test_dataloader

    def _seen(self) -> int:
        """How many batches of this epoch a run that is resumed has learned from."""
        assert self.trainer is not None
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def _evaluation_loader(self, split: str) -> DataLoader[Any]:
        dataset = self._dataset(split)
        return self._loader(dataset, InOrder(dataset, self.batch_size))

    def _dataset(self, split: str) -> CaptionDataset:
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
            self.variation if split == TRAIN else Variation(),
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
        self,
        dataset: CaptionDataset,
        sampler: InOrder,
        kind: type[DataLoader[Any]] = DataLoader,
    ) -> DataLoader[Any]:
        if self.num_workers:
            give_back_memory()
        return kind(
            dataset,
            batch_size=sampler.own,
            sampler=sampler,
            num_workers=self.num_workers,
            collate_fn=dataset.collate,
            # Its own: a loader that drew from the global generator would change what comes after.
            generator=torch.Generator().manual_seed(0),
            persistent_workers=self.num_workers > 0,
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
