"""The tokenizer against Stanford's, and the vocabulary."""

import random
import re
import shutil

import pytest

from captioner.data.module import CaptionDataModule
from captioner.data.readers import read
from captioner.errors import DataError
from captioner.evaluation.java import ptb_words
from captioner.language import vocabulary as text
from captioner.language.vocabulary import (
    END,
    PAD,
    SPECIALS,
    START,
    UNK,
    Tokenizer,
    Vocabulary,
    join,
)
from layouts import flickr8k

needs_java = pytest.mark.skipif(
    shutil.which("java") is None,
    reason="no java on PATH: our tokenizer was NOT compared with Stanford's",
)

# The output of Stanford's tokenizer as coco-caption calls it.
CASES = {
    "A dog runs.": "a dog runs",
    "A DOG   runs \t fast": "a dog runs fast",
    "": "",
    "   ": "",
    ". ... ? ! -- ; '' \" ,": "",
    "A dog runs. A cat, asleep; a bird: gone!": "a dog runs a cat asleep a bird gone",
    "The dog runs . The cat sleeps .": "the dog runs the cat sleeps",
    "on a shelf..": "on a shelf",
    "and then... the end....": "and then the end",
    "It's the dog's, isn't it?": "it 's the dog 's is n't it",
    "they're, we've, he'll, I'm, she'd": "they 're we 've he 'll i 'm she 'd",
    "it can't, won't, cannot": "it ca n't wo n't can not",
    "It’s a “big” dog – with a hat—and…": "it 's a big dog with a hat and",
    'a sign saying "stop" and "go."': "a sign saying stop and go",
    "a 'danger' sign, 'it's here.'": "a danger sign it 's here",
    "rock n' roll of the '90s, two dogs' toys": "rock n roll of the '90s two dogs toys",
    "dress 'em 'til noon o'clock": "dress 'em 'til noon o'clock",
    "a blue -shirt, a t-shirt, a walkie- talkie": "a blue shirt a t-shirt a walkie talkie",
    "it is -5 degrees at 5:30 p.m.": "it is -5 degrees at 5:30 p.m.",
    "Mr. Hat on 5th St.": "mr. hat on 5th st.",
    "S. Pellegrino in the U.S.": "s. pellegrino in the u.s.",
    "forks, cups, etc.": "forks cups etc.",
    "10,000 of 3.5 inch, 50% off for $5": "10,000 of 3.5 inch 50 % off for $ 5",
    "a black/white dog & #1": "a black/white dog & # 1",
    "Ein ÉCOLIER naïf à vélo": "ein écolier naïf à vélo",
    "狗 собака": "狗 собака",
}


def test_words():
    for caption, words in CASES.items():
        assert Tokenizer()(caption) == words.split()
    # Brackets are dropped; coco-caption writes -lrb- and -rrb-.
    assert " ".join(Tokenizer()("a (big) [red] {old} <new> dog ([{}])")) == "a big red old new dog"


@needs_java
def test_the_cases_are_those_of_stanford():
    assert dict(zip(CASES, ptb_words(list(CASES)), strict=True)) == CASES


@needs_java
@pytest.mark.parametrize(("part", "number"), [("flickr8k", 35_000), ("coco", 7_327)])
def test_agreement_with_stanford_on_real_captions(part, number, shared_data):
    captions = [c for record in read(part, shared_data / part) for c in record.captions]
    assert len(captions) == number
    split = Tokenizer()
    stanford = ptb_words(captions)
    same = sum(split(c) == words.split() for c, words in zip(captions, stanford, strict=True))
    assert same / number >= 0.9995


def test_join_puts_clitics_back_and_leaves_other_words_alone():
    for sentence in (
        "the dog's bone isn't here",
        "they're sure we've seen what he'll say i'm told she'd go",
        "it can't and won't",
        "the s and the t of a sign",
        "'s",
        "",
    ):
        assert join(Tokenizer()(sentence)) == sentence
    words = ["rock", "'n", "roll", "'em", "nt", "'s", "'stop"]
    assert join(words) == "rock 'n roll 'em nt's 'stop"


CAPTIONS = [caption.split() for caption in ("a b c a", "b a d <unk>", "c e a b", "<unk> <unk> é")]


@pytest.mark.parametrize(
    ("min_count", "words"),
    [(1, ["a", "b", "c", "d", "e", "é"]), (2, ["a", "b", "c"]), (3, ["a", "b"]), (4, ["a"])],
)
def test_vocabulary_is_ordered_by_frequency_then_alphabet(min_count, words):
    vocabulary = Vocabulary.build(CAPTIONS, min_count)
    assert vocabulary.words == (*SPECIALS, *words)
    assert vocabulary.plain_words == words
    assert [vocabulary.words[i] for i in (PAD, START, END, UNK)] == list(SPECIALS)
    assert vocabulary.encode(words) == list(range(4, 4 + len(words)))


def test_encode_and_decode():
    vocabulary = Vocabulary(["a", "dog", "n't"])
    ids = vocabulary.encode(["a", "dog", "zebra", "<pad>"])
    assert ids == [4, 5, UNK, PAD]
    assert vocabulary.decode([START, 4, 5, UNK, PAD, 6, END, 4]) == ["a", "dog", "<unk>", "n't"]
    assert vocabulary.decode([]) == vocabulary.decode([END, 4]) == []
    assert vocabulary.decode(vocabulary.encode(vocabulary.plain_words)) == vocabulary.plain_words


def test_words_that_are_repeated_or_cannot_be_shown_are_refused():
    for wrong in (["a", "b"], [""], ["<end>"], ["x" * 101], ["tab\t"]):
        with pytest.raises(DataError, match="needs different words of 1 to 100 characters"):
            Vocabulary(["a", "b", *wrong])


def test_no_word_is_frequent_enough():
    for captions in ([], [["a", "b"], ["a", "c"]], [["<unk>"] * 9]):
        with pytest.raises(DataError, match=r"no word appears 3 times .* lower data\.min_count"):
            Vocabulary.build(captions, 3)


def test_only_training_captions_make_the_vocabulary(tmp_path):
    root = flickr8k(
        tmp_path,
        {
            "train": {"1.jpg": ["a dog runs", "a dog"], "2.jpg": ["the cat"]},
            "val": {"3.jpg": ["a zebra runs", "zebra zebra dog"]},
            "test": {"4.jpg": ["a yak", "yak yak yak cat"]},
        },
    )
    data = CaptionDataModule("flickr8k", str(root), min_count=1, cache_dir=str(tmp_path))
    assert data.words == ["a", "dog", "cat", "runs", "the"]
    assert len(data.records) == 4


def test_the_fast_path_splits_like_the_rules(monkeypatch, shared_data):
    """The fast path for plain captions gives the same words as the Treebank rules."""
    rng = random.Random(0)
    pieces = [*"-,. 1b'xé…", "a", "st", "mr", "cannot", "gonna", "t-shirt", "--", ", ", " .", "  "]
    pieces += ["2,000", "u.s.", "dr", "p.m", "etc", "no.", "A ", "dog "]
    captions = ["".join(rng.choices(pieces, k=rng.randint(1, 9))) for _ in range(2000)]
    captions += [record.captions[0] for record in read("coco", shared_data / "coco")]
    quick = [Tokenizer()(caption) for caption in captions]
    monkeypatch.setattr(text, "_PLAIN", re.compile(r"(?!)"))  # matches nothing
    assert [Tokenizer()(caption) for caption in captions] == quick
