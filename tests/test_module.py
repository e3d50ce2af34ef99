"""Batches as documented, and in an order that nothing but seed and epoch decides."""

import itertools
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

from captioner import images, memory
from captioner.data.dataset import Batch, cropped
from captioner.data.grammar import CAPTIONS
from captioner.data.module import CaptionDataModule, ShapesOptions, default_cache
from captioner.data.records import TEST, TRAIN, VAL
from captioner.errors import DataError
from captioner.text import END, PAD, START, Tokenizer
from captioner.training.objectives import Likelihood
from layouts import flickr8k, picture
from test_features import GRID, FakeEncoder

L, D = 6, 3
HEIGHT, WIDTH = FakeEncoder.preprocessing.height, FakeEncoder.preprocessing.width
SIZES = {TRAIN: 11, VAL: 5, TEST: 3}


class StubEncoder(FakeEncoder):
    trainable = False

    def load_pretrained(self):
        self.loaded = True

    def to(self, device):
        assert self.loaded, "cached before its weights were there"
        return self


def prepared(data: CaptionDataModule, trainable=False, supervision=0.0) -> CaptionDataModule:
    """As Lightning prepares it, with an encoder whose annotations are the means of cells."""
    encoder = StubEncoder()
    encoder.trainable = trainable
    objective = Likelihood(supervision=supervision)
    task = SimpleNamespace(captioner=SimpleNamespace(encoder=encoder), objective=objective)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    progress = SimpleNamespace(current=SimpleNamespace(ready=0))
    loop = SimpleNamespace(epoch_loop=SimpleNamespace(batch_progress=progress))
    data.trainer = SimpleNamespace(lightning_module=task, strategy=strategy, fit_loop=loop)
    data.setup("fit")
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
    """Flickr8k's layout with the given captions, every file another picture."""

    def make(splits, broken=(), trainable=False, **options) -> CaptionDataModule:
        root = flickr8k(tmp_path / "data", splits)
        for seed, file in enumerate(sorted((root / "Flicker8k_Dataset").iterdir())):
            if file.name not in broken:
                picture(file, seed)
        defaults = {"batch_size": 4, "min_count": 1, "cache_dir": str(tmp_path / "cache")}
        return prepared(CaptionDataModule("flickr8k", str(root), **defaults | options), trainable)

    return make


def epoch(data: CaptionDataModule, number: int) -> list[Batch]:
    """The batches of one epoch of training, as Lightning asks for them."""
    loader = data.train_dataloader()
    loader.sampler.set_epoch(number)
    return list(loader)


def ids(batches: Iterable[Batch]) -> list[int | str]:
    return [image_id for batch in batches for image_id in batch.image_ids]


def rows(batches: Iterable[Batch]) -> dict[int | str, list[list[int]]]:
    """Every picture's R captions as ids."""
    tokens = itertools.chain(*(batch.tokens.tolist() for batch in batches))
    return dict(zip(ids(batches), tokens, strict=True))


def values(batches: Iterable[Batch]) -> dict[int | str, torch.Tensor]:
    tensors = [batch.pixels if batch.vectors is None else batch.vectors for batch in batches]
    return dict(zip(ids(batches), itertools.chain(*tensors), strict=True))


def direct(path: str, mirrored=False, cache=True) -> torch.Tensor:
    """What the encoder sees of a file, or gives for it; the file itself mirrored beforehand."""
    with Image.open(path) as file:
        picture = file.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if mirrored else file.copy()
    pixels = images.to_tensor(picture, (HEIGHT, WIDTH), "bilinear")
    return FakeEncoder()(pixels.unsqueeze(0)).vectors[0].half() if cache else pixels


def said(data: CaptionDataModule, tokens: list[list[int]]) -> list[str]:
    return [" ".join(data.vocabulary.decode(row)) for row in tokens]


def same(one: list[Batch], other: list[Batch]) -> bool:
    return ids(one) == ids(other) and all(
        torch.equal(a.tokens, b.tokens)
        and all(map(torch.equal, values([a]).values(), values([b]).values()))
        for a, b in zip(one, other, strict=True)
    )


# ── Batches ───────────────────────────────────────────────────────────────────────────────────────


def test_batches_have_the_documented_shapes(shapes):
    data = shapes()
    batches = epoch(data, 0)
    assert [len(batch.image_ids) for batch in batches] == [4, 4, 3]
    for batch in batches:
        size = len(batch.image_ids)
        assert isinstance(batch, Batch)
        assert batch.vectors.shape == (size, L, D)
        assert batch.vectors.dtype == torch.float16
        assert (batch.grid, batch.pixels) == (GRID, None)
        assert batch.tokens.shape[:2] == (size, 5)
        assert batch.tokens.dtype == torch.int64
        assert (batch.tokens != PAD).any(dim=(0, 1)).all(), "wider than its longest caption"


def test_tokens_are_start_words_end_padding(shapes):
    data = shapes(captions_per_image=CAPTIONS)
    for batch in [*epoch(data, 0), *data.val_dataloader(), *data.test_dataloader()]:
        for row in batch.tokens.flatten(0, 1).tolist():
            start, *words, end = row[: row.index(END) + 1]
            assert (start, end) == (START, END)
            assert min(words) > END
            assert set(row[len(words) + 2 :]) <= {PAD}


@pytest.mark.parametrize("split", [TRAIN, VAL, TEST])
def test_every_picture_has_its_own_captions_and_annotations(split, shapes):
    data = shapes(test_split=split)
    batches = epoch(data, 0) if split == TRAIN else list(data.test_dataloader())
    captions, vectors = rows(batches), values(batches)
    assert len(captions) == SIZES[split]
    for record in data.of_split(split):
        own = [data.vocabulary.encode(Tokenizer()(caption)) for caption in record.captions]
        given = [row[1 : row.index(END)] for row in captions[record.image_id] if any(row)]
        assert sorted(given) == sorted(own)
        assert torch.equal(vectors[record.image_id], direct(record.path))


@pytest.mark.parametrize("split", [VAL, TEST])
def test_evaluation_sees_every_picture_once_and_in_order(split, shapes):
    data = shapes(test_split=split, batch_size=2)
    expected = [record.image_id for record in data.of_split(split)]
    for _ in range(2):
        assert ids(data.test_dataloader()) == ids(data.predict_dataloader()) == expected
    assert ids(data.val_dataloader()) == [record.image_id for record in data.of_split(VAL)]


# ── Order and chance ──────────────────────────────────────────────────────────────────────────────


def test_every_picture_once_per_epoch(shapes):
    data = shapes()
    everything = Counter(record.image_id for record in data.of_split(TRAIN))
    orders = [ids(epoch(data, number)) for number in range(4)]
    assert all(Counter(order) == everything for order in orders)
    assert len(set(map(tuple, orders))) == 4


@pytest.mark.parametrize("cache", [True, False])
def test_chance_is_of_seed_and_epoch_alone(cache, shapes, monkeypatch):
    """Order, captions drawn and mirroring: the same whatever else was drawn, or came before."""
    options = {"captions_per_image": 2, "mirror": 0.5, "cache": cache}
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    loader = shapes(**options).train_dataloader()
    first = []
    for number in range(3):
        loader.sampler.set_epoch(number)
        first.append(list(loader))
    for number in (2, 0, 1):
        np.random.rand(), torch.rand(1)
        assert same(epoch(shapes(**options), number), first[number])
    assert not same(first[0], first[1])
    monkeypatch.setenv("PL_GLOBAL_SEED", "4")
    assert ids(epoch(shapes(**options), 0)) != ids(first[0])


def test_loading_draws_nothing_from_the_global_generators(shapes):
    data = shapes(mirror=0.5)
    torch.manual_seed(1), np.random.seed(1)
    expected = torch.rand(3), np.random.rand(3)
    torch.manual_seed(1), np.random.seed(1)
    assert list(data.val_dataloader())
    assert epoch(data, 0)
    assert torch.equal(torch.rand(3), expected[0])
    assert np.array_equal(np.random.rand(3), expected[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_worker_processes_change_nothing(shapes):
    options = {"captions_per_image": 2, "mirror": 0.5, "cache": False}
    assert same(epoch(shapes(**options, num_workers=1), 1), epoch(shapes(**options), 1))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_loader_goes_on_where_it_was(workers, shapes):
    options = {"captions_per_image": 2, "mirror": 0.5, "num_workers": workers}
    whole = [epoch(shapes(**options), number) for number in (1, 2)]
    data = shapes(**options)
    loader = data.train_dataloader()
    for number, seen in ((1, 2), (2, 0)):
        loader.sampler.set_epoch(number)
        batches = iter(loader)
        # Lightning knows how far a resumed run was when it asks for the first batch.
        data.trainer.fit_loop.epoch_loop.batch_progress.current.ready = seen
        assert same(list(batches), whole[number - 1][seen:])
    assert len(loader) == 3


# ── Captions ──────────────────────────────────────────────────────────────────────────────────────

FIVE = ["one", "two", "three", "four", "five"]
FEW, MANY = FIVE[:2], FIVE


def test_of_many_captions_every_epoch_draws_others(photos):
    captions = {TRAIN: {"few.jpg": FEW, "many.jpg": MANY}, VAL: {"v.jpg": MANY}}
    data = photos(captions, captions_per_image=2)
    draws = [rows(epoch(data, number)) for number in range(30)]
    pairs = [tuple(said(data, draw["many.jpg"])) for draw in draws]
    assert all(len(set(pair)) == 2 for pair in pairs)
    assert len(set(pairs)) > 8  # of 20
    counts = Counter(itertools.chain(*pairs))
    assert set(counts) == set(MANY)
    assert max(counts.values()) < 3 * min(counts.values())
    assert all(sorted(said(data, draw["few.jpg"])) == FEW for draw in draws)
    for _ in range(2):  # what validation sees does not change
        assert said(data, rows(data.val_dataloader())["v.jpg"]) == FEW


@pytest.mark.parametrize("split", [TRAIN, VAL])
def test_few_captions_leave_rows_of_padding(split, photos):
    captions = {"few.jpg": FEW, "many.jpg": MANY}
    data = photos({TRAIN: {"t.jpg": MANY}, VAL: {"v.jpg": MANY}} | {split: captions})
    tokens = rows(epoch(data, 0) if split == TRAIN else data.val_dataloader())
    assert sorted(said(data, tokens["few.jpg"][:2])) == FEW
    assert tokens["few.jpg"][2:] == [[PAD] * 3] * 3
    assert sorted(said(data, tokens["many.jpg"])) == sorted(MANY)


def test_long_captions_are_cut_and_not_taught_to_end(photos):
    captions = ["a b c", "a b c d", "a b c d e", "a b c d e f g"]
    data = photos({TRAIN: {"x.jpg": captions}, VAL: {"y.jpg": captions}}, max_words=4)
    a, b, c, d = data.vocabulary.encode("abcd")
    for batches in (epoch(data, 0), data.val_dataloader()):
        (tokens,) = rows(batches).values()
        assert sorted(tokens) == sorted(
            [
                [START, a, b, c, END, PAD],
                [START, a, b, c, d, END],
                [START, a, b, c, d, PAD],
                [START, a, b, c, d, PAD],
                [PAD] * 6,
            ]
        )


def test_rare_words_are_unknown(photos):
    captions = {TRAIN: {"a.jpg": ["a dog", "a cat", "a dog"]}, VAL: {"b.jpg": ["a yak"]}}
    data = photos(captions, min_count=2, captions_per_image=3)
    assert data.words == ["a", "dog"]
    (tokens,) = rows(epoch(data, 0)).values()
    assert sorted(said(data, tokens)) == ["a <unk>", "a dog", "a dog"]
    assert said(data, rows(data.val_dataloader())["b.jpg"])[0] == "a <unk>"


# ── Mirroring ─────────────────────────────────────────────────────────────────────────────────────

SIDED = ["on the left", "Right of it", "its LEFT side", "a right-handed man", "the leftmost one"]
UNSIDED = ["a bright light", "an upright bass", "a copyright sign", "two dogs"]


@pytest.mark.parametrize("cache", [True, False])
def test_mirrored_annotations_are_those_of_the_mirrored_picture(cache, photos):
    captions = {f"{i}.jpg": ["a thing", caption] for i, caption in enumerate([*SIDED, *UNSIDED])}
    data = photos({TRAIN: captions, VAL: {"val.jpg": ["two dogs"]}}, mirror=1.0, cache=cache)
    given = values(epoch(data, 0))
    for record in data.of_split(TRAIN):
        mirrored = record.captions[1].removesuffix(" .") in UNSIDED
        expected = direct(record.path, mirrored, cache)
        other = direct(record.path, not mirrored, cache)
        torch.testing.assert_close(given[record.image_id], expected, rtol=2e-3, atol=1)
        assert (given[record.image_id].float() - other.float()).abs().max() > 10
    (record,) = data.of_split(VAL)
    (seen,) = values(data.val_dataloader()).values()
    assert torch.equal(seen, direct(record.path, False, cache))


@pytest.mark.parametrize(("mirror", "least", "most"), [(0.0, 0, 0), (0.25, 5, 35), (0.5, 25, 55)])
def test_the_probability_of_mirroring(mirror, least, most, photos):
    data = photos({TRAIN: {"a.jpg": ["one"], "b.jpg": ["two"]}}, mirror=mirror)
    plain = {r.image_id: direct(r.path) for r in data.records}
    drawn = [values(epoch(data, number)) for number in range(40)]
    turned = sum(not torch.equal(v, plain[i]) for draw in drawn for i, v in draw.items())
    assert least <= turned <= most


# ── Without a cache ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("options", [{"cache": False}, {"trainable": True}])
def test_without_a_cache_come_pixels(options, photos, tmp_path):
    data = photos({TRAIN: {f"{i}.jpg": FIVE for i in range(5)}, VAL: {"v.jpg": FIVE}}, **options)
    batches = epoch(data, 0)
    for batch in batches:
        assert batch.pixels.shape == (len(batch.image_ids), 3, HEIGHT, WIDTH)
        assert batch.pixels.dtype == torch.uint8
        assert (batch.vectors, batch.grid) == (None, (0, 0))
    for record in data.of_split(TRAIN):
        assert torch.equal(values(batches)[record.image_id], direct(record.path, cache=False))
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("trainable", [False, True])
def test_cached_pictures_are_those_of_the_files(trainable, photos):
    splits = {TRAIN: {f"{i}.jpg": FIVE for i in range(5)}, VAL: {"v.jpg": FIVE}}
    options = {"mirror": 0.5, "crop": 0.7}
    kept = photos(splits, cache="images", trainable=trainable, **options)
    read = photos(splits, cache=False, trainable=trainable, **options)
    for number in range(3):
        assert same(epoch(kept, number), epoch(read, number))
    (seen,) = values(kept.val_dataloader()).values()
    assert torch.equal(seen, direct(kept.of_split(VAL)[0].path, cache=False))


# ── Cropping ──────────────────────────────────────────────────────────────────────────────────────


def test_a_crop_is_a_part_of_the_picture_in_its_own_shape():
    """Rows and columns as brightness: what is seen says where it was."""
    height, width = 120, 200
    pixels = torch.stack(
        [
            torch.arange(height).unsqueeze(1).expand(height, width),
            torch.arange(width).expand(height, width),
            torch.full((height, width), 77),
        ]
    ).to(torch.uint8)
    areas = []
    for seed in range(40):
        seen = cropped(pixels, 0.5, np.random.default_rng(seed)).float()
        assert seen.shape == pixels.shape
        assert (seen[2] == 77).all(), "colours stay"
        down = float(seen[0, -10, 50] - seen[0, 10, 50]) / (height - 20)  # old rows per new row
        right = float(seen[1, 50, -10] - seen[1, 50, 10]) / (width - 20)
        assert down == pytest.approx(right, abs=0.03), "nothing gets thinner"
        assert (seen[0].diff(dim=0) >= 0).all(), "nothing is turned"
        assert (seen[1].diff(dim=1) >= 0).all()
        areas.append(down * right)
        assert torch.equal(seen, cropped(pixels, 0.5, np.random.default_rng(seed)).float())
    assert 0.47 < min(areas) < 0.6
    assert 0.9 < max(areas) <= 1.02
    corners = {
        tuple(cropped(pixels, 0.5, np.random.default_rng(s))[:2, 0, 0].tolist()) for s in range(40)
    }
    assert len(corners) > 30
    assert torch.equal(cropped(pixels, 1.0, np.random.default_rng(0)), pixels)


def test_vectors_cannot_be_cropped(shapes):
    with pytest.raises(DataError, match=r"give --data\.cache images"):
        shapes(crop=0.8)


# ── Pictures that cannot be read ──────────────────────────────────────────────────────────────────

WITH_BROKEN = {
    TRAIN: {"a.jpg": ["A dog."], "bad.jpg": ["a cat"], "c.jpg": ["a cow"]},
    VAL: {"d.jpg": ["A dog, here", "two"], "worse.jpg": ["a cat"], "f.jpg": ["a cow"]},
}


@pytest.mark.parametrize("cache", [True, False])
def test_unreadable_pictures_are_left_out(cache, photos, caplog):
    data = photos(WITH_BROKEN, broken=("bad.jpg", "worse.jpg"), cache=cache)
    assert sorted(ids(epoch(data, 0))) == ["a.jpg", "c.jpg"]
    assert ids(data.val_dataloader()) == ["d.jpg", "f.jpg"]
    for name in ("bad.jpg", "worse.jpg"):
        told = [r for r in caplog.records if f"/{name}" in r.getMessage()]
        assert len(told) == 1
        assert told[0].levelname == "WARNING"


def test_references_are_raw_and_of_pictures_that_can_be_read(photos):
    data = photos(WITH_BROKEN, broken=("bad.jpg", "worse.jpg"))
    assert data.references(VAL) == {"d.jpg": ["A dog, here .", "two ."], "f.jpg": ["a cow ."]}
    assert data.references(TRAIN).keys() == {"a.jpg", "c.jpg"}


def test_a_batch_without_a_readable_picture(photos):
    data = photos({TRAIN: {"a.jpg": ["a"], "b.jpg": ["b"]}}, broken=("a.jpg", "b.jpg"), cache=False)
    (batch,) = data.train_dataloader()
    assert batch.image_ids == []
    assert len(batch.tokens) == 0


# ── What is wrong, in one line ────────────────────────────────────────────────────────────────────


def test_an_empty_split_is_told_with_those_there_are(photos):
    data = photos({TRAIN: {f"{i}.jpg": ["a"] for i in range(3)}, VAL: {"v.jpg": ["a"]}})
    with pytest.raises(DataError) as error:
        data.test_dataloader()
    message = str(error.value)
    assert (
        "data set 'flickr8k' has no pictures in split 'test'; it has train (3), val (1)" in message
    )
    assert "--data.test_split" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"name": "flickr9k", "root": "."}, "unknown data set 'flickr9k'; known: flickr8k"),
        ({"name": "coco"}, r"data set 'coco' needs its folder: give --data\.root DIR"),
        ({"crop": 0.0}, r"data\.crop must be between 0 and 1, got 0"),
        ({"mirror": 1.5}, r"data\.mirror must be between 0 and 1, got 1\.5"),
        ({"test_split": "dev"}, r"data\.test_split is 'dev'; expected one of train, val, test"),
    ],
)
def test_wrong_options(options, said):
    with pytest.raises(DataError, match=said):
        CaptionDataModule(**options)


def test_no_training_captions(photos):
    with pytest.raises(DataError, match=r"no pictures in split 'train'; it has val \(2\)"):
        photos({VAL: {"a.jpg": ["a dog"], "b.jpg": ["a cat"]}})


def test_no_word_is_frequent_enough(photos):
    with pytest.raises(DataError, match=r"no word appears 9 times .*data\.min_count"):
        photos({TRAIN: {"a.jpg": ["a dog", "a dog"]}}, min_count=9)


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"CAPTIONER_CACHE": "/here", "XDG_CACHE_HOME": "/there"}, "/here"),
        ({"XDG_CACHE_HOME": "/there"}, "/there/captioner"),
        ({"HOME": "/home/me"}, "/home/me/.cache/captioner"),
        ({"HOME": "/home/me", "CAPTIONER_CACHE": "~/mine"}, "/home/me/mine"),
    ],
)
def test_where_the_cache_is(variables, folder, monkeypatch):
    for name in ("CAPTIONER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert default_cache() == Path(folder)


@pytest.mark.parametrize(("workers", "expected"), [(0, []), (1, [0])])
def test_what_was_freed_is_given_back_before_workers_begin(shapes, monkeypatch, workers, expected):
    called: list[int] = []
    data = shapes(num_workers=workers)
    library = SimpleNamespace(malloc_trim=called.append)
    monkeypatch.setattr(memory.ctypes, "CDLL", lambda _: library)
    data.val_dataloader()
    assert called == expected
