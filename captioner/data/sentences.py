"""Captions as numbers, in memory that processes share.

    records ─ tokenizer ─▶ Spoken(words, numbers) ─ vocabulary ─▶ Sentences(token ids)

A training split of COCO has five million words: as Python lists they would take half a gigabyte.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise

from captioner.data.columns import Numbers
from captioner.data.records import Record
from captioner.text import END, START, Tokenizer, Vocabulary


class Sentences(Sequence[list[list[int]]]):
    """The sentences of N pictures, each a list of numbers.

    Args:
        pictures: every picture's sentences, taken one by one.
    """

    def __init__(self, pictures: Iterable[Iterable[Sequence[int]]]) -> None:
        ends, counts = [0], [0]

        def numbers() -> Iterator[Sequence[int]]:
            for sentences in pictures:
                for sentence in sentences:
                    ends.append(ends[-1] + len(sentence))
                    yield sentence
                counts.append(len(ends) - 1)

        self._numbers = Numbers(chain.from_iterable(numbers()), "i")
        self._ends, self._counts = Numbers(ends), Numbers(counts)

    def __len__(self) -> int:
        return len(self._counts) - 1

    def __getitem__(self, place: int) -> list[list[int]]:  # type: ignore[override]
        place = range(len(self))[place]  # from the end, too; IndexError beyond
        ends = self._ends[self._counts[place] : self._counts[place + 1] + 1]
        return [self._numbers[begin:end] for begin, end in pairwise(ends)]

    def __iter__(self) -> Iterator[list[list[int]]]:
        return map(self.__getitem__, range(len(self)))


class Spoken:
    """The captions of some pictures, taken apart into words.

    Args:
        records: the pictures.
        tokenizer: takes a caption apart.

    Attributes:
        words: the number of every word that is said.
        sentences: the captions as such numbers, in the order of the records.
    """

    def __init__(self, records: Iterable[Record], tokenizer: Tokenizer) -> None:
        self.words: dict[str, int] = {}
        self.sentences = Sentences(
            [
                [self.words.setdefault(word, len(self.words)) for word in tokenizer(caption)]
                for caption in record.captions
            ]
            for record in records
        )

    def __iter__(self) -> Iterator[list[str]]:
        """Every caption's words."""
        words = list(self.words)
        for picture in self.sentences:
            for sentence in picture:
                yield [words[number] for number in sentence]

    def encoded(
        self, vocabulary: Vocabulary, max_words: int, places: Iterable[int] | None = None
    ) -> Sentences:
        """The captions as ids of the vocabulary, from ``<start>`` to ``<end>``.

        Args:
            vocabulary: a word that is not in it becomes ``<unk>``.
            max_words: a longer caption is cut there, and does not end.
            places: of the pictures whose captions are wanted; all, if not given.
        """
        ids = vocabulary.encode(self.words)

        def encode(sentence: list[int]) -> list[int]:
            cut = [ids[number] for number in sentence[:max_words]]
            return [START, *cut, END] if len(sentence) <= max_words else [START, *cut]

        wanted = range(len(self.sentences)) if places is None else places
        return Sentences([encode(s) for s in self.sentences[place]] for place in wanted)
