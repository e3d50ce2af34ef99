"""Captions as numbers, in memory that processes share.

records ─ tokenizer ─▶ TokenizedCaptions(words, sentences) ─ vocabulary ─▶ token ids
"""

from collections.abc import Iterable, Iterator

from captioner.data.records import Record, SharedList
from captioner.text import END, START, Tokenizer, Vocabulary

Sentences = SharedList[list[list[int]]]  # for each image, its captions as lists of numbers


class TokenizedCaptions:
    """The captions of some images, split into words once."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.words: dict[str, int] = {}  # the number of every distinct word
        tokenizer = Tokenizer()
        self.sentences: Sentences = SharedList(  # of such numbers, one item per record
            [
                [self.words.setdefault(word, len(self.words)) for word in tokenizer(caption)]
                for caption in record.captions
            ]
            for record in records
        )

    def __iter__(self) -> Iterator[list[str]]:
        """The words of every caption."""
        words = list(self.words)
        for sentences in self.sentences:
            for sentence in sentences:
                yield [words[number] for number in sentence]

    def encoded(self, vocabulary: Vocabulary, max_words: int, indices: Iterable[int]) -> Sentences:
        """The captions of these images as token ids, from ``<start>`` to ``<end>``.

        Captions of more than ``max_words`` words are cut to this length and get no ``<end>``.
        """
        ids = vocabulary.encode(self.words)

        def encode(sentence: list[int]) -> list[int]:
            end = [END] if len(sentence) <= max_words else []
            return [START, *(ids[number] for number in sentence[:max_words]), *end]

        return SharedList([encode(s) for s in self.sentences[index]] for index in indices)
