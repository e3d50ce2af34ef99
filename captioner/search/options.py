"""The options of a search for captions, and of sampled captions."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from captioner import limits
from captioner.errors import UsageError, unknown

Options = TypeVar("Options", bound="_Options")


@dataclass(frozen=True)
class _Options:
    """Options with ranges; a value outside its range raises UsageError."""

    ranges: ClassVar[Mapping[str, limits.Number]]

    def __post_init__(self) -> None:
        values = vars(self)
        for name, expected in self.ranges.items():
            limits.check(name, values[name], expected)
        least, most = values["min_length"], values["max_length"]
        if least > most:
            raise UsageError(f"min_length must be at most max_length, got {least} and {most}")

    def with_options(self: Options, options: Mapping[str, Any]) -> Options:
        """Return a copy with some options changed; those that are None stay as they are.

        Raises:
            UsageError: an option of another kind, or a value out of range.
        """
        for name in options.keys() - self.ranges.keys():
            raise UsageError(unknown("option", name, self.ranges))
        return replace(self, **{k: value for k, value in options.items() if value is not None})


@dataclass(frozen=True)
class Decoding(_Options):
    """Options of the search for captions; values outside ``limits.DECODING`` raise UsageError.

    Attributes:
        beam_size: hypotheses per image; 1 is greedy search.
        max_length: maximal number of words.
        length_penalty: hypotheses are ranked by log-probability / length ** length_penalty, where
            the length includes the end token; 1 is the mean per token, 0 prefers short captions.
        samples: number of paths that are averaged, for sampled hard attention; see ``MonteCarlo``.
        no_repeat: no sequence of this many words occurs twice in a caption (Paulus et al. 2018, arXiv
            1705.04304, §2.5); 0 allows repetitions.
        min_length: least number of words, at most ``max_length``.
        diverse_groups: groups of the beam, for diverse beam search (Vijayakumar et al. 2018, arXiv
            1610.02424); 1 is plain beam search. It divides ``beam_size``.
        diversity: penalty, in nats, of a word for every hypothesis of an earlier group that has the
            same word at the same position; with ``diverse_groups``.
    """

    ranges = limits.DECODING

    beam_size: int = 5
    max_length: int = 24
    length_penalty: float = 1.0
    samples: int = 1
    no_repeat: int = 0
    min_length: int = 1
    diverse_groups: int = 1
    diversity: float | int = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.beam_size * self.samples > limits.MAX_ROWS:
            raise UsageError(
                f"beam_size × samples must be at most {limits.MAX_ROWS}, "
                f"got {self.beam_size} × {self.samples}"
            )
        if self.beam_size % self.diverse_groups:
            raise UsageError(
                f"beam_size must be a multiple of diverse_groups, got {self.beam_size} and "
                f"{self.diverse_groups}"
            )

    @property
    def group_size(self) -> int:
        """Hypotheses per group; without diverse beam search, the whole beam is one group."""
        return self.beam_size // self.diverse_groups


@dataclass(frozen=True)
class WordSampling(_Options):
    """Options of sampled captions; values outside ``limits.WORD_SAMPLING`` raise UsageError.

    Attributes:
        num_captions: number of captions per image.
        temperature: the logits are divided by it; below 1, probable words become more probable.
        top_k: only this many most probable words can be chosen (Fan et al. 2018, arXiv 1805.04833);
            0 for all.
        top_p: only the fewest most probable words whose probabilities sum to this or more can be chosen
            (nucleus sampling, Holtzman et al. 2020, arXiv 1904.09751); 1 for all.
        min_length, max_length: least and largest number of words.
        seed: another seed gives other captions.
    """

    ranges = limits.WORD_SAMPLING

    num_captions: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_length: int = 1
    max_length: int = 24
    seed: int = 0
