"""The Lightning data module: vocabulary, annotation cache, and loaders of batches."""

import logging
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytorch_lightning as pl
import torch
from torch.utils.data import DataLoader

from captioner import distributed
from captioner.data import shapes_dataset
from captioner.data.cache import AnnotationCache, PixelEncoder, default_folder
from captioner.data.crops import FixedCrop
from captioner.data.dataset import CaptionDataset, EpochSampler, ResumableLoader
from captioner.data.pixels import ImageFiles
from captioner.data.readers import READERS, detect, read
from captioner.data.records import SPLITS, TRAIN, VAL, Records, TokenizedCaptions
from captioner.data.sources import FurtherData, join
from captioner.data.supervision import BoxSupervision, MaskSupervision, Supervision
from captioner.errors import DataError, plural, printable, unknown
from captioner.fast.malloc import give_back_memory
from captioner.language.vocabulary import Vocabulary, unspaced
from captioner.photos.region_files import RegionFiles
from captioner.resources import find_model
from captioner.store import checkpoint

_LOG = logging.getLogger(__name__)


@dataclass
class ShapesOptions:
    """The generated scenes of ``data.name: shapes``.

    Attributes:
        train, val, test: numbers of scenes.
        image_size: side of a scene in pixels.
        max_objects: largest number of objects in a scene.
        seed: another seed gives other scenes.
    """

    train: int = 2000
    val: int = 200
    test: int = 200
    image_size: int = 224
    max_objects: int = 3
    seed: int = 0

    def write(self, root: str | None, cache_dir: Path) -> Path:
        """Write the scenes to ``root`` or the cache folder, unless they exist; return the folder."""
        options = asdict(self)
        sizes = {split: options.pop(split) for split in SPLITS}
        name = "-".join(map(str, [*sizes.values(), *options.values()]))
        folder = Path(root).expanduser() if root else cache_dir / "shapes" / name
        progress = partial(_progress, total=sum(sizes.values()), title="drawing scenes")
        shapes_dataset.write(folder, sizes=sizes, progress=progress, **options)
        return folder


class CaptionDataModule(pl.LightningDataModule):
    """Images with captions, ready for training.

    Args:
        name: the data set: coco, flickr8k, flickr30k, karpathy, jsonl, csv, folder, auto
            (what lies in the folder), or shapes (generated, needs no files); see docs/data.md.
        root: its folder, as downloaded; for shapes, the folder to which scenes are written.
        batch_size: images per batch, over all processes.
        captions_per_image: captions drawn per image and epoch; images with fewer use all.
        max_words: longer training captions are cut to this length and get no end token.
        tokenizer: ``characters`` for captions in a script without spaces between words, such as Chinese.
        min_count: words that occur less often in the training captions become ``<unk>``.
        mirror: probability of mirroring a training image left to right. Images whose captions say left
            or right are never mirrored.
        crop: least fraction of a training image's area that a random crop keeps; 1 does not crop.
            Every epoch draws new crops.
        cached_crops: the number of crops of each training image whose annotation vectors are cached;
            training reads the whole image or one of its crops, with equal probabilities.
        cache: true keeps the annotation vectors of a frozen encoder on disk, for later epochs and runs;
            images keeps resized images, for a trainable encoder; false keeps nothing.
        cache_dir: the cache folder; by default ``$CAPTIONER_CACHE``, or ``captioner`` in the user's
            cache folder.
        test_split: the split used by ``test`` and ``predict``.
        num_workers: processes that read images.
        shapes: the scenes of ``name: shapes``.
        entities: the folder of Flickr30k Entities, whose boxes then supervise attention instead of
            object masks if the objective's ``supervision`` is above 0.
        keep_vocabulary: a model, such as the one of ``model.init_from``, whose words stay in the
            vocabulary, although the captions do not contain them.
        sources: further data sets whose photos join the training split; see ``FurtherData``.
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
        cached_crops: int = 0,
        cache: bool | Literal["images"] = True,
        cache_dir: str | None = None,
        test_split: Literal["train", "val", "test"] = "test",
        num_workers: int = 0,
        shapes: ShapesOptions = ShapesOptions(),  # noqa: B008 - never changed
        entities: str | None = None,
        keep_vocabulary: str | None = None,
        sources: list[FurtherData] | None = None,
        tokenizer: Literal["words", "characters"] = "words",
    ) -> None:
        super().__init__()
        self.name = " + ".join([name, *(source.name for source in sources or [])])
        self.test_split, self.num_workers = test_split, num_workers
        self.batch_size, self.captions_per_image = batch_size, captions_per_image
        self.max_words, self.mirror, self.cache = max_words, mirror, cache
        self.crop, self.cached_crops = crop, cached_crops
        self.entities = Path(entities).expanduser() if entities else None
        self.cache_dir = Path(cache_dir).expanduser() if cache_dir else default_folder()
        self.scenes = shapes.write(root, self.cache_dir) if name == "shapes" else None
        """The folder of generated scenes; None for photos."""
        if self.scenes is not None:
            name, root = "coco", str(self.scenes)
        elif name not in READERS:
            raise DataError(unknown("data set", name, [*READERS, "shapes"]))
        elif not root:
            raise DataError(f"data set {name!r} needs its folder: give --data.root DIR")
        self._all = self.records = join(read(name, root), sources or [])
        captions = [caption for record in self.records[:1000] for caption in record.captions]
        if tokenizer == "words" and unspaced(" ".join(captions)):
            raise DataError(
                "the captions have no spaces between words: give --data.tokenizer characters"
            )
        if name == "auto" and distributed.rank() == 0:
            print(self._found(Path(root).expanduser()))
        self._tokenized: dict[str, TokenizedCaptions] = {}
        kept: list[str] = []
        if keep_vocabulary:
            kept = checkpoint.load(find_model(keep_vocabulary)).captioner.vocabulary.plain_words
        self.vocabulary = Vocabulary.build(self._captions(TRAIN), min_count, kept)
        self._cache: AnnotationCache | None = None
        self._cropped: list[AnnotationCache] = []

    def _found(self, root: Path) -> str:
        found = detect(root)
        kinds = {"folder": "text files beside photos", "coco": "COCO annotations"}
        what = kinds.get(found.name, found.source.name)
        sizes = ", ".join(f"{len(self.records.of_split(split)):,} for {split}" for split in SPLITS)
        captions = plural(sum(len(record.captions) for record in self.records), "caption")
        line = f"found {plural(len(self.records), 'photo')} with {captions} in {what}"
        left_aside = (f"left aside: {reason}" for reason in found.left_aside)
        return "\n".join([f"{line} (data.name {found.name}): {sizes}", *left_aside])

    @property
    def words(self) -> list[str]:
        """The words of the vocabulary; the model is built with them."""
        return self.vocabulary.plain_words

    def of_split(self, split: str) -> Records:
        """The records of a split; DataError if it is empty."""
        records = self.records.of_split(split)
        if not records:
            sizes = {s: len(self.records.of_split(s)) for s in SPLITS}
            others = ", ".join(f"{s} ({n:,})" for s, n in sizes.items() if n)
            raise DataError(
                f"data set {self.name!r} has no photos in split {split!r}; it has {others}; "
                "for test and predict choose another with --data.test_split"
            )
        return records

    def references(self, split: str) -> dict[int | str, list[str]]:
        """The reference captions of a split's images, except those that the cache could not read."""
        return {record.image_id: list(record.captions) for record in self.of_split(split)}

    def in_order(self, captions: Mapping[int | str, str]) -> dict[int | str, str]:
        """Sort captions by the order of the records."""
        return {r.image_id: captions[r.image_id] for r in self.records if r.image_id in captions}

    def fill_cache(
        self, encoder: Any, device: torch.device | str, verify: bool = False, crops: bool = True
    ) -> list[AnnotationCache]:
        """Cache the annotation vectors of all images, or, with ``cache: images``, the resized images.

        Images that cannot be read, whole or cropped, are removed from ``records`` with a warning.

        Args:
            verify: check the checksums of existing files and compute damaged ones again.
            crops: cache the vectors of ``cached_crops`` crops of the training images, too.

        Returns:
            The cache of whole images, then those of the crops.
        """
        size, count = encoder.preprocessing, self.cached_crops if crops else 0
        encoder = PixelEncoder(size) if self.cache == "images" else encoder.to(device)
        caches = []
        for number in range(count + 1):
            crop = FixedCrop(self.crop, number, (size.height, size.width)) if number else None
            records = self._all.of_split(TRAIN) if number else self._all
            what = f"crop {number} of {count}" if number else "whole images"
            show = partial(_progress, title=f"caching {what}")
            cache = AnnotationCache.open(
                self.cache_dir / "annotations",
                [record.path for record in records],
                encoder,
                device=device,
                progress=show if distributed.rank() == 0 else lambda batches, _: batches,
                verify=verify,
                crop=crop,
            )
            caches.append(cache)
        self._cache, *self._cropped = caches
        failed = {path: message for cache in caches for path, message in cache.failed.items()}
        for path, message in failed.items():
            _LOG.warning("left out: %s (%s)", printable(path), message)
        if failed or len(self.records) < len(self._all):
            readable = [i for i, record in enumerate(self._all) if record.path not in failed]
            self.records = self._all.take(readable)
            self._tokenized.clear()
        return caches

    def caches(self, trainable: bool) -> bool:
        """Whether annotations or pixels are cached, given whether the encoder is trainable."""
        return self.cache == "images" or (bool(self.cache) and not trainable)

    def check_crops(self, trainable: bool) -> None:
        """Raise DataError if ``crop`` and ``cached_crops`` do not fit the encoder and ``cache``."""
        vectors = self.cache is True and not trainable
        if self.crop < 1 and vectors and not self.cached_crops:
            raise DataError(
                "cached annotation vectors cannot be cropped: give --data.cached_crops 3, or "
                "--data.cache images to run the encoder in every epoch"
            )
        if self.cached_crops and not (self.crop < 1 and vectors):
            raise DataError(
                "data.cached_crops needs data.crop below 1, a frozen encoder and data.cache true"
            )

    def setup(self, stage: str) -> None:
        """Open the cache; the processes share the work of filling it."""
        assert self.trainer is not None
        task: Any = self.trainer.lightning_module
        encoder, supervised = task.captioner.encoder, task.objective.needs_masks
        encoder.load_pretrained()
        regions = isinstance(encoder.preprocessing, RegionFiles)
        crops = self.crop < 1 or self.cached_crops
        if regions and (self.mirror or crops or self.cache == "images" or supervised):
            raise DataError(
                "region features are of whole photos: give --data.mirror 0, and leave out data.crop, "
                "data.cached_crops, data.cache images and the objective's supervision"
            )
        device, training = self.trainer.strategy.root_device, stage == "fit"
        if training:
            self.check_crops(encoder.trainable or regions)
        unfinished = self._cache is None or (training and len(self._cropped) < self.cached_crops)
        if unfinished and self.caches(encoder.trainable or regions):
            self.fill_cache(encoder, device, crops=training)
        self._source = self._cache or ImageFiles(encoder.preprocessing)
        self._mask_grid = _grid(encoder, device) if supervised else None

    def train_dataloader(self) -> DataLoader[Any]:
        """Training batches, in an order that depends on seed and epoch only."""
        supervision: Supervision | None = None
        if self._mask_grid is not None and self.entities is not None:
            supervision = BoxSupervision(self.entities, self._mask_grid)
        elif self._mask_grid is not None:
            supervision = MaskSupervision(self.of_split(TRAIN), self._mask_grid)
        dataset = self._dataset(TRAIN, self.mirror, self.crop, supervision, self._cropped)
        options = self._options(dataset, global_seed())
        return ResumableLoader(completed_batches=self._completed_batches, **options)

    def val_dataloader(self) -> DataLoader[Any]:
        """Every validation image once."""
        return DataLoader(**self._options(self._dataset(VAL)))

    def test_dataloader(self) -> DataLoader[Any]:
        """Every image of ``test_split`` once."""
        return DataLoader(**self._options(self._dataset(self.test_split)))

    predict_dataloader = test_dataloader

    def _dataset(self, split: str, *augmentation: Any) -> CaptionDataset:
        records, rows = self.of_split(split), self.captions_per_image
        captions = self._captions(split).encoded(self.vocabulary, self.max_words)
        return CaptionDataset(records, captions, self._source, rows, *augmentation)

    def _options(self, dataset: CaptionDataset, seed: int | None = None) -> dict[str, Any]:
        sampler = EpochSampler(dataset, self.batch_size, seed)
        if self.num_workers:
            give_back_memory()
        return {
            "dataset": dataset,
            "batch_size": sampler.local_batch_size,
            "sampler": sampler,
            "num_workers": self.num_workers,
            "collate_fn": dataset.collate,
            # Without this, the loader would draw from the global generator and change later draws.
            "generator": torch.Generator().manual_seed(0),
            "persistent_workers": self.num_workers > 0,
        }

    def _completed_batches(self) -> int:
        assert self.trainer is not None
        return self.trainer.fit_loop.epoch_loop.batch_progress.current.ready

    def _captions(self, split: str) -> TokenizedCaptions:
        """The captions of a split, tokenized once."""
        if split not in self._tokenized:
            self._tokenized[split] = TokenizedCaptions(self.of_split(split))
        return self._tokenized[split]


def global_seed() -> int:
    """The seed given to ``seed_everything``, which Lightning keeps in the environment."""
    return int(os.environ.get("PL_GLOBAL_SEED", "0"))


def _grid(encoder: Any, device: torch.device) -> tuple[int, int]:
    """The (rows, columns) of the regions that are attended, found with a black image."""
    size = encoder.preprocessing
    with torch.no_grad():
        black = torch.zeros(1, 3, size.height, size.width, dtype=torch.uint8, device=device)
        annotations = encoder.to(device)(black)
    return (annotations.keys or annotations).grid


def _progress(items: Iterable[Any], total: int, title: str = "caching") -> Iterable[Any]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    disable = not console.is_terminal
    return track(items, description=title, total=total, console=console, disable=disable)
