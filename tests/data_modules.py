"""Data modules of small data sets, as fixtures, and what their batches hold."""

import itertools
from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

from captioner.data.dataset import CaptionBatch
from captioner.data.module import CaptionDataModule, ShapesOptions
from captioner.data.pixels import to_tensor
from captioner.data.records import TEST, TRAIN, VAL
from captioner.models.annotations import Annotations
from captioner.training.likelihood import Likelihood
from layouts import flickr8k, picture
from tests.data.test_cache import FakeEncoder

L, D = 6, 3
HEIGHT, WIDTH = FakeEncoder.preprocessing.height, FakeEncoder.preprocessing.width
SIZES = {TRAIN: 11, VAL: 5, TEST: 3}


class StubEncoder(FakeEncoder):
    trainable = False

    def load_pretrained(self):
        self.loaded = True

    def to(self, device):
        assert self.loaded, "the cache was filled before the weights were loaded"
        return self


def prepared(
    data: CaptionDataModule, trainable=False, supervision=0.0, stage="fit"
) -> CaptionDataModule:
    """Set up as by Lightning, with an encoder whose annotation vectors are the means of cells."""
    encoder = StubEncoder()
    encoder.trainable = trainable
    objective = Likelihood(supervision=supervision)
    task = SimpleNamespace(captioner=SimpleNamespace(encoder=encoder), objective=objective)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    progress = SimpleNamespace(current=SimpleNamespace(ready=0))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    data.trainer = SimpleNamespace(lightning_module=task, strategy=strategy, fit_loop=loop)
    data.setup(stage)
    return data


@pytest.fixture(scope="module")
def cache_dir(tmp_path_factory) -> str:
    return str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def shapes(cache_dir):
    def make(**options) -> CaptionDataModule:
        defaults = {"batch_size": 4, "min_count": 1, "cache_dir": cache_dir}
        scenes = ShapesOptions(**SIZES, image_size=64)
        return prepared(CaptionDataModule("shapes", shapes=scenes, **defaults | options))

    return make


@pytest.fixture
def photos(tmp_path):
    """A data module of Flickr8k's layout with the given captions; every image is different."""

    def make(
        splits, broken=(), trainable=False, stage="fit", keep=False, **options
    ) -> CaptionDataModule:
        """With ``keep``, use the photos of an earlier call."""
        root = tmp_path / "data" if keep else flickr8k(tmp_path / "data", splits)
        for seed, file in enumerate(sorted((root / "Flicker8k_Dataset").iterdir())):
            if file.name not in broken and not keep:
                picture(file, seed)
        defaults = {"batch_size": 4, "min_count": 1, "cache_dir": str(tmp_path / "cache")}
        data = CaptionDataModule("flickr8k", str(root), **defaults | options)
        return prepared(data, trainable, stage=stage)

    return make


def epoch(data: CaptionDataModule, number: int) -> list[CaptionBatch]:
    """The training batches of one epoch."""
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)
    return list(loader)


def ids(batches: Iterable[CaptionBatch]) -> list[int | str]:
    return [image_id for batch in batches for image_id in batch.image_ids]


def rows(batches: Iterable[CaptionBatch]) -> dict[int | str, list[list[int]]]:
    """The token ids of each image's R captions."""
    tokens = itertools.chain(*(batch.tokens.tolist() for batch in batches))
    return dict(zip(ids(batches), tokens, strict=True))


def values(batches: Iterable[CaptionBatch]) -> dict[int | str, torch.Tensor]:
    """The annotation vectors of each image, or its pixels."""
    images = [batch.images for batch in batches]
    tensors = [x.vectors if isinstance(x, Annotations) else x for x in images]
    return dict(zip(ids(batches), itertools.chain(*tensors), strict=True))


def direct(path: str, mirrored=False, cache=True) -> torch.Tensor:
    """The pixels of a file, mirrored or not, or their annotation vectors."""
    with Image.open(path) as file:
        picture = file.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else file.copy()
    pixels = to_tensor(picture, (HEIGHT, WIDTH), "bilinear")
    return FakeEncoder()(pixels.unsqueeze(0)).vectors[0].half() if cache else pixels


def texts(data: CaptionDataModule, tokens: list[list[int]]) -> list[str]:
    return [" ".join(data.vocabulary.decode(row)) for row in tokens]


def same(one: list[CaptionBatch], other: list[CaptionBatch]) -> bool:
    return ids(one) == ids(other) and all(
        torch.equal(a.tokens, b.tokens)
        and all(map(torch.equal, values([a]).values(), values([b]).values()))
        for a, b in zip(one, other, strict=True)
    )
