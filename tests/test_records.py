"""Columns hold what lists would, and processes share them."""

import pickle
import random
from multiprocessing.reduction import ForkingPickler

import pytest
import torch.multiprocessing as mp

from captioner.data.columns import Numbers, Strings
from captioner.data.records import SPLITS, TEST, TRAIN, VAL, Record, Records
from captioner.data.sentences import Sentences, Spoken
from captioner.errors import DataError
from captioner.text import END, START, UNK, Tokenizer, Vocabulary

ODD = [
    "",
    "a",
    "naïve café",
    "犬が走る",
    "\U0001f415",
    "no utf-8: \udcff",
    "two\nlines",
    "\0",
    "x" * 9999,
]
NUMBERS = [0, 1, -1, 2**62, -(2**62), 7]


@pytest.mark.parametrize("strings", [[], [""], ODD, ODD[::-1], ["", "", ""]])
@pytest.mark.parametrize("sent", [False, True])
def test_strings(strings, sent):
    column = Strings(iter(strings))
    column = pickle.loads(pickle.dumps(column)) if sent else column
    assert list(column) == strings
    assert len(column) == len(strings)
    assert [column[i] for i in range(-len(strings), len(strings))] == strings * 2
    assert column[1:3] == strings[1:3]
    assert column[::-2] == strings[::-2]
    for place in (len(strings), -len(strings) - 1):
        with pytest.raises(IndexError):
            column[place]


@pytest.mark.parametrize("sent", [False, True])
def test_numbers(sent):
    column = Numbers(iter(NUMBERS))
    column = pickle.loads(pickle.dumps(column)) if sent else column
    assert list(column) == column[:] == NUMBERS
    assert [column[i] for i in range(-6, 6)] == NUMBERS * 2
    assert column[1:9:2] == NUMBERS[1:9:2]
    with pytest.raises(IndexError):
        column[6]
    assert list(Numbers()) == Numbers()[:] == []
    with pytest.raises(OverflowError):
        Numbers([2**31], "i")


def some(seed: int, size: int) -> list[Record]:
    rng = random.Random(seed)
    ids = [rng.choice([number, f"{number}.jpg", f'"{number}" é']) for number in range(size)]
    return [
        Record(i, f"/data/{i}", tuple(rng.choices(ODD, k=rng.randint(0, 6))), rng.choice(SPLITS))
        for i in ids
    ]


def in_order(records: list[Record]) -> list[Record]:
    return sorted(records, key=lambda r: (SPLITS.index(r.split), str(r.image_id).zfill(12)))


@pytest.mark.parametrize("seed", range(4))
def test_records_are_what_they_were_made_of(seed):
    given = some(seed, 50)
    records, expected = Records(iter(given)), in_order(given)
    assert list(records) == expected
    assert records == expected
    assert records != expected[::-1]
    assert records != expected[1:]
    assert (records == 7) is False
    assert [records[i] for i in range(-50, 50)] == expected * 2
    assert records[3:40:7] == expected[3:40:7]
    assert records.take([5, 5, 2]) == [expected[5], expected[5], expected[2]]
    assert list(records.ids) == [r.image_id for r in expected]
    assert list(records.paths) == [r.path for r in expected]
    assert list(records.splits) == [r.split for r in expected]
    for split in SPLITS:
        part = records.of_split(split)
        assert part == [r for r in expected if r.split == split]
        assert part[1:] == list(part)[1:]
    assert pickle.loads(pickle.dumps(records.of_split(VAL))) == records.of_split(VAL)
    with pytest.raises(IndexError):
        records[50]


def test_no_records():
    assert list(Records()) == list(Records().of_split(TRAIN)) == []
    assert not Records()


def _said(records: Records, queue: mp.Queue) -> None:
    queue.put([(record.image_id, record.captions) for record in records])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_another_process_reads_the_same(method):
    given = some(7, 20)
    context = mp.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_said, args=(Records(given), queue))
    process.start()
    assert queue.get(timeout=60) == [(r.image_id, r.captions) for r in in_order(given)]
    process.join()


def test_what_is_sent_to_a_process_is_not_the_text():
    """torch sends the name of shared memory; a million characters are not copied."""
    captions = tuple(f"caption {i} " + "x" * 100 for i in range(10_000))
    records = Records([Record(1, "a.jpg", captions, TRAIN)])
    assert len(ForkingPickler.dumps(records)) < 10_000 < len(pickle.dumps(records))


def test_a_record_costs_little():
    """COCO's 123,000 images with 617,000 captions in 60 MB."""
    captions = tuple("a brown dog runs over the green grass of a park in town." for _ in range(5))
    path = "/data/coco/train2014/COCO_train2014_000000000000.jpg"
    size = len(pickle.dumps(Records(Record(i, path, captions, TRAIN) for i in range(1000))))
    assert size * 123.287 < 60e6


# ── Captions as numbers ───────────────────────────────────────────────────────────────────────────

SAID = [
    Record(1, "1", ("A dog runs.", "the dog's bone", "..."), TRAIN),
    Record(2, "2", (), TEST),
    Record(3, "3", ("a cat and a dog and a cow", "cat"), VAL),
]


@pytest.mark.parametrize("pictures", [[], [[]], [[], [[1, 2], [], [3]], [[4]], []], [[[]], [[]]]])
def test_sentences(pictures):
    found = Sentences(pictures)
    assert list(found) == pictures
    assert len(found) == len(pictures)
    assert [found[i] for i in range(-len(found), 0)] == pictures
    assert list(pickle.loads(pickle.dumps(found))) == pictures


def test_spoken_captions_are_those_of_the_tokenizer():
    tokenizer = Tokenizer()
    spoken = Spoken(SAID, tokenizer)
    assert list(spoken) == [tokenizer(caption) for record in SAID for caption in record.captions]


@pytest.mark.parametrize("max_words", [1, 3, 7, 8, 20])
@pytest.mark.parametrize("places", [None, [], [2], [2, 0, 0]])
def test_encoded_captions(max_words, places):
    vocabulary = Vocabulary(["a", "dog", "cat", "'s"])
    tokenizer = Tokenizer()
    encoded = Spoken(SAID, tokenizer).encoded(vocabulary, max_words, places)
    wanted = SAID if places is None else [SAID[place] for place in places]
    assert len(encoded) == len(wanted)
    for record, sentences in zip(wanted, encoded, strict=True):
        assert len(sentences) == len(record.captions)
        for caption, ids in zip(record.captions, sentences, strict=True):
            words = tokenizer(caption)
            assert ids[0] == START
            assert (ids[-1] == END) == (len(words) <= max_words)
            known = [vocabulary.words[i] for i in ids[1:] if i != END]
            plain = [w if w in vocabulary.words else vocabulary.words[UNK] for w in words]
            assert known == plain[:max_words]


def test_a_vocabulary_of_what_is_said():
    spoken = Spoken(SAID, Tokenizer())
    assert Vocabulary.build(spoken, 2).plain_words == ["a", "dog", "and", "cat"]
    with pytest.raises(DataError, match="no word appears 9 times"):
        Vocabulary.build(spoken, 9)
