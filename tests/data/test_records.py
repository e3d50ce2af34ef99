"""Packed lists, records and tokenized captions equal the lists they are made from."""

import pickle
import random

import pytest

from captioner.data.records import (
    SPLITS,
    TEST,
    TRAIN,
    VAL,
    PackedList,
    Record,
    Records,
    TokenizedCaptions,
)
from captioner.language.vocabulary import END, START, UNK, Tokenizer, Vocabulary

TEXTS = ["", "a", "naïve café", "犬が走る", "\U0001f415", "no utf-8: \udcff", "two\nlines", "\0"]
SENTENCES = [[], [[]], [[1, 2], [], [3]], [[2**40]]]


@pytest.mark.parametrize("items", [[], [""], TEXTS, SENTENCES])
def test_a_packed_list_equals_the_list(items):
    packed = PackedList(iter(items))
    assert list(packed) == list(pickle.loads(pickle.dumps(packed))) == items
    assert [packed[i] for i in range(-len(items), len(items))] == items * 2
    for index in (len(items), -len(items) - 1):
        with pytest.raises(IndexError):
            packed[index]


def random_records(seed: int, size: int) -> list[Record]:
    rng = random.Random(seed)
    ids = [rng.choice([number, f"{number}.jpg", f'"{number}" é']) for number in range(size)]
    return [
        Record(i, f"/data/{i}", tuple(rng.choices(TEXTS, k=rng.randint(0, 6))), rng.choice(SPLITS))
        for i in ids
    ]


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))


def test_records_equal_the_sorted_list():
    unsorted = random_records(0, 50)
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
    assert list(Records()) == list(Records().of_split(TRAIN)) == []


# ── Captions as numbers ───────────────────────────────────────────────────────────────────────────

CAPTIONED = [
    Record(1, "1", ("A dog runs.", "the dog's bone", "..."), TRAIN),
    Record(2, "2", (), TEST),
    Record(3, "3", ("a cat and a dog and a cow", "cat"), VAL),
]


@pytest.mark.parametrize("max_words", [1, 7, 8])
def test_encoded_captions(max_words):
    vocabulary = Vocabulary(["a", "dog", "cat", "'s"])
    tokenizer, captions = Tokenizer(), TokenizedCaptions(CAPTIONED)
    assert list(captions) == [tokenizer(text) for record in CAPTIONED for text in record.captions]
    encoded = captions.encoded(vocabulary, max_words)
    for record, sentences in zip(CAPTIONED, encoded, strict=True):
        for caption, ids in zip(record.captions, sentences, strict=True):
            words = tokenizer(caption)
            assert ids[0] == START
            assert (ids[-1] == END) == (len(words) <= max_words)
            known = [vocabulary.words[i] for i in ids[1:] if i != END]
            plain = [w if w in vocabulary.words else vocabulary.words[UNK] for w in words]
            assert known == plain[:max_words]
