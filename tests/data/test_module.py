"""Batches have the documented form, in an order that depends on seed and epoch only."""

import numpy as np
import pytest
import torch

from captioner.data.module import CaptionDataModule
from captioner.data.records import TEST, TRAIN, VAL
from captioner.data.scene_grammar import CAPTIONS
from captioner.errors import DataError
from captioner.evaluation.metrics import CaptionScorer
from captioner.language.vocabulary import END, PAD, START, Tokenizer, join
from data_modules import SIZES, D, L, direct, epoch, ids, rows, same, texts, values
from tests.data.test_cache import GRID

# ── Batches ───────────────────────────────────────────────────────────────────────────────────────


def test_batches_have_the_documented_shapes(shapes):
    data = shapes()
    batches = epoch(data, 0)
    assert [len(batch.image_ids) for batch in batches] == [4, 4, 3]
    for batch in [*batches, *data.val_dataloader(), *data.test_dataloader()]:
        size = len(batch.image_ids)
        assert batch.images.vectors.shape == (size, L, D)
        assert batch.images.vectors.dtype == torch.float16
        assert batch.images.grid == GRID
        assert (batch.tokens.shape[:2], batch.tokens.dtype) == ((size, 5), torch.int64)
        assert (batch.tokens != PAD).any(dim=(0, 1)).all(), "wider than its longest caption"
        for row in batch.tokens[:, :CAPTIONS].flatten(0, 1).tolist():
            start, *words, end = row[: row.index(END) + 1]
            assert (start, end) == (START, END)
            assert min(words) > END
            assert set(row[len(words) + 2 :]) <= {PAD}
        assert (batch.tokens[:, CAPTIONS:] == PAD).all()


@pytest.mark.parametrize("split", [TRAIN, TEST])
def test_every_image_has_its_captions_and_annotations(split, shapes):
    data = shapes(test_split=split)
    batches = epoch(data, 0) if split == TRAIN else list(data.test_dataloader())
    captions, vectors = rows(batches), values(batches)
    assert len(captions) == SIZES[split]
    for record in data.of_split(split):
        expected = [data.vocabulary.encode(Tokenizer()(caption)) for caption in record.captions]
        actual = [row[1 : row.index(END)] for row in captions[record.image_id] if any(row)]
        assert sorted(actual) == sorted(expected)
        assert torch.equal(vectors[record.image_id], direct(record.path))


# ── Order and randomness ──────────────────────────────────────────────────────────────────────────────


def test_randomness_depends_on_seed_and_epoch_only(shapes, monkeypatch):
    """Order, captions and mirroring do not depend on other random numbers or earlier epochs."""
    options = {"captions_per_image": 2, "mirror": 0.5}
    monkeypatch.setenv("PL_GLOBAL_SEED", "3")
    loader = shapes(**options).train_dataloader()
    first = []
    for number in range(3):
        loader.sampler.set_epoch(number)
        first.append(list(loader))
    for number in (2, 0, 1):
        np.random.rand(), torch.rand(1)
        assert same(epoch(shapes(**options), number), first[number])
    assert ids(first[0]) != ids(first[1])
    assert sorted(ids(first[0])) == sorted(ids(first[1]))
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


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_resumed_loader_skips_completed_batches(workers, shapes):
    """With a worker process, it also gives the same batches as without."""
    options = {"captions_per_image": 2, "mirror": 0.5}
    whole = [epoch(shapes(**options), number) for number in (1, 2)]
    data = shapes(**options, num_workers=workers)
    loader = data.train_dataloader()
    for number, completed in ((1, 2), (2, 0)):
        loader.sampler.set_epoch(number)
        batches = iter(loader)
        # Lightning sets the progress between iter() and the first batch.
        data.trainer.fit_loop.epoch_loop.batch_progress.current.ready = completed
        assert same(list(batches), whole[number - 1][completed:])
    assert len(loader) == 3


# ── Errors ────────────────────────────────────────────────────────────────────


def test_the_error_for_an_empty_split_names_the_others(photos):
    data = photos({TRAIN: {f"{i}.jpg": ["a"] for i in range(3)}, VAL: {"v.jpg": ["a"]}})
    with pytest.raises(DataError) as error:
        data.test_dataloader()
    message = "data set 'flickr8k' has no photos in split 'test'; it has train (3), val (1); "
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "flickr9k", "root": "."}, "unknown data set 'flickr9k'; known: flickr8k"),
        ({"name": "coco"}, r"data set 'coco' needs its folder: give --data\.root DIR"),
    ],
)
def test_wrong_options(options, message):
    with pytest.raises(DataError, match=message):
        CaptionDataModule(**options)


def test_captions_without_spaces_need_the_tokenizer_of_characters(photos):
    captions = {TRAIN: {"a.jpg": ["一只狗在跑。"], "b.jpg": ["一只猫,狗"]}, VAL: {"v.jpg": ["狗"]}}
    with pytest.raises(DataError, match=r"give --data\.tokenizer characters"):
        photos(captions)
    data = photos(captions, tokenizer="characters")
    assert set(data.words) == set("一只狗在跑猫")
    (text,) = texts(data, rows(epoch(data, 0))["a.jpg"][:1])
    assert join(text.split()) == "一只狗在跑"
    scores = CaptionScorer(data.references(TRAIN)).score({"a.jpg": "一只狗在跑"})
    assert (scores.bleu_4, scores.meteor) == (pytest.approx(100), None)
