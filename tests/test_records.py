"""Shared lists, records and tokenized captions equal the lists they are made from, in all processes."""

import pickle
import random
from multiprocessing.reduction import ForkingPickler

import pytest
import torch.multiprocessing as mp

from captioner.data.records import (
    SPLITS,
    TEST,
    TRAIN,
    VAL,
    Record,
    Records,
    SharedList,
    TokenizedCaptions,
)
from captioner.errors import DataError
from captioner.text import END, START, UNK, Tokenizer, Vocabulary

TEXTS = ["", "a", "naïve café", "犬が走る", "\U0001f415", "no utf-8: \udcff", "two\nlines", "\0"]
SENTENCES = [[], [[]], [[1, 2], [], [3]], [[2**40]]]


@pytest.mark.parametrize("items", [[], [""], TEXTS, TEXTS[::-1], SENTENCES])
@pytest.mark.parametrize("pickled", [False, True])
def test_a_shared_list_equals_the_list(items, pickled):
    shared = SharedList(iter(items))
    shared = pickle.loads(pickle.dumps(shared)) if pickled else shared
    assert list(shared) == items
    assert [shared[i] for i in range(-len(items), len(items))] == items * 2
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            shared[index]


def random_records(seed: int, size: int) -> list[Record]:
    rng = random.Random(seed)
    ids = [rng.choice([number, f"{number}.jpg", f'"{number}" é']) for number in range(size)]
    return [
        Record(i, f"/data/{i}", tuple(rng.choices(TEXTS, k=rng.randint(0, 6))), rng.choice(SPLITS))
        for i in ids
    ]


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))


@pytest.mark.parametrize("seed", range(3))
def test_records_equal_the_sorted_list(seed):
    unsorted = random_records(seed, 50)
    records, expected = Records(iter(unsorted)), in_order(unsorted)
    assert [records[i] for i in range(-50, 50)] == expected * 2
    assert list(records[3:40:7]) == expected[3:40:7]
    assert list(records.take([5, 5, 2])) == [expected[5], expected[5], expected[2]]
    for split in SPLITS:
        part = records.of_split(split)
        assert list(part) == [r for r in expected if r.split == split]
        assert list(part[1:].of_split(split)) == list(part)[1:]
        assert list(pickle.loads(pickle.dumps(part))) == list(part)
    with pytest.raises(IndexError):
        records[50]
    assert list(Records()) == list(Records().of_split(TRAIN)) == list(Records().take([])) == []


def send(records: Records, queue: mp.Queue) -> None:
    queue.put([(record.image_id, record.captions) for record in records])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_the_same(method):
    unsorted = random_records(7, 20)
    context = mp.get_context(method)
    queue = context.Queue()
    process = context.Process(target=send, args=(Records(unsorted), queue))
    process.start()
    assert queue.get(timeout=60) == [(r.image_id, r.captions) for r in in_order(unsorted)]
    process.join()


def test_processes_share_the_text():
    """torch sends the name of shared memory instead of a million characters."""
    captions = tuple(f"caption {i} " + "x" * 100 for i in range(10_000))
    records = Records([Record(1, "a.jpg", captions, TRAIN)])
    assert len(ForkingPickler.dumps(records)) < 10_000 < len(pickle.dumps(records))


def test_memory_of_coco():
    """COCO's 123,287 images with five captions each take less than 60 MB."""
    captions = tuple("a brown dog runs over the green grass of a park in town." for _ in range(5))
    captions = tuple(f"{caption} {i}" for i, caption in enumerate(captions))
    path = "/data/coco/train2014/COCO_train2014_000000000000.jpg"
    size = len(pickle.dumps(Records(Record(i, path, captions, TRAIN) for i in range(1000))))
    assert size * 123.287 < 60e6


# ── Captions as numbers ───────────────────────────────────────────────────────────────────────────

CAPTIONED = [
    Record(1, "1", ("A dog runs.", "the dog's bone", "..."), TRAIN),
    Record(2, "2", (), TEST),
    Record(3, "3", ("a cat and a dog and a cow", "cat"), VAL),
]


@pytest.mark.parametrize("max_words", [1, 7, 8])
def test_encoded_captions(max_words):
    vocabulary = Vocabulary(["a", "dog", "cat", "'s"])
    tokenizer = Tokenizer()
    encoded = TokenizedCaptions(CAPTIONED).encoded(vocabulary, max_words)
    for record, sentences in zip(CAPTIONED, encoded, strict=True):
        for caption, ids in zip(record.captions, sentences, strict=True):
            words = tokenizer(caption)
            assert ids[0] == START
            assert (ids[-1] == END) == (len(words) <= max_words)
            known = [vocabulary.words[i] for i in ids[1:] if i != END]
            plain = [w if w in vocabulary.words else vocabulary.words[UNK] for w in words]
            assert known == plain[:max_words]


def test_a_vocabulary_of_tokenized_captions():
    tokenizer = Tokenizer()
    captions = TokenizedCaptions(CAPTIONED)
    assert list(captions) == [tokenizer(text) for record in CAPTIONED for text in record.captions]
    assert Vocabulary.build(captions, 2).plain_words == ["a", "dog", "and", "cat"]
    with pytest.raises(DataError, match="no word appears 9 times"):
        Vocabulary.build(captions, 9)
