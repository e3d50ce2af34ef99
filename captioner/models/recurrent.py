"""What the LSTM decoders share: how their memory starts, is updated, and looks back at itself."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Attention, AttentionBase, Keys
from captioner.models.attention.scores import Additive
from captioner.models.decoder import Decoded, Detail, WordDecoder, gather_rows
from captioner.models.linear import Linear
from captioner.models.recurrence import Recurrence


@runtime_checkable
class AttentionFactory(Protocol):
    """Makes an attention once the sizes are known."""

    def __call__(self, *, query_dim: int, memory_dim: int) -> AttentionBase:
        """An attention for queries of width ``query_dim`` over vectors of width ``memory_dim``."""
        ...


@dataclass(frozen=True)
class Tape:
    """All earlier memories of a row, for a decoder that attends to them.

    Attributes:
        prepared: every earlier h as the score wants it.
        values: every earlier [h; c].
        read: h̃_t, what the last step read from the tape.
    """

    prepared: Float[Tensor, "B *R t A"]
    values: Float[Tensor, "B *R t N"]
    read: Float[Tensor, "B *R n"]

    def select(self, rows: Int[Tensor, "B K"]) -> "Tape":
        """The tapes of the chosen rows."""
        return Tape(
            gather_rows(self.prepared, rows, 2),
            gather_rows(self.values, rows, 2),
            gather_rows(self.read, rows),
        )


@dataclass(frozen=True)
class Memory:
    """What an LSTM remembers, for every row of every picture.

    Attributes:
        hidden: h_t.
        cell: c_t.
        tape: all h and c after a word, h_t and c_t included; None before the first word, and where
            nobody looks back.
    """

    hidden: Float[Tensor, "B *R n"]
    cell: Float[Tensor, "B *R n"]
    tape: Tape | None = None

    def select(self, rows: Int[Tensor, "B K"]) -> "Memory":
        """The memory of the chosen rows."""
        tape = None if self.tape is None else self.tape.select(rows)
        return Memory(gather_rows(self.hidden, rows), gather_rows(self.cell, rows), tape)


@dataclass(frozen=True)
class LSTMState:
    """What an LSTM decoder knows between two words.

    Attributes:
        memory: of the LSTM.
        keys: what the attention computed once per picture.
        recurrence: how the memory is updated.
        words: how many words have been fed in.
    """

    memory: Memory
    keys: Keys
    recurrence: Recurrence
    words: int = 0

    def select(self, rows: Int[Tensor, "B K"]) -> "LSTMState":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        return replace(self, memory=self.memory.select(rows))


class IntraAttention(nn.Module):
    """An LSTM that looks back at all its memories, not only the last (Cheng, Dong, Lapata 2016).

    The LSTMN of arXiv 1601.06733, eq. 4 to 6. With x_t the input::

        s = softmax_i(vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1}))      over i = 1 … t-1
        h̃_t = Σ s_i h_i     c̃_t = Σ s_i c_i

    and (h̃_t, c̃_t) stand in for (h_{t-1}, c_{t-1}) in the LSTM's update. Before the first word there
    is nothing to look back at, and the start memory is read as it is.

    Args:
        input_dim: the width of x.
        hidden: n, the width of the LSTM's memory.
    """

    def __init__(self, input_dim: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(input_dim + hidden, hidden, partial(Additive, dim=hidden))

    def read(
        self, inputs: Float[Tensor, "B *R i"], memory: Memory
    ) -> tuple[Memory, Float[Tensor, "B *R t"]]:
        """(h̃_t, c̃_t), and how much each of the t earlier memories counts in them."""
        tape, rows = memory.tape, memory.hidden.shape[:-1]
        if tape is None:
            return memory, inputs.new_zeros(*rows, 0)
        # Every row has its own tape, as every picture has its own annotations.
        query = torch.cat([inputs, tape.read], -1).flatten(0, -2)
        prepared, values = (t.flatten(0, -3) for t in (tape.prepared, tape.values))
        attended = self.attention(query, Keys(prepared, values, None, (1, values.shape[1])))
        assert attended.weights is not None
        hidden, cell = attended.context.to(inputs.dtype).view(*rows, -1).chunk(2, -1)
        return Memory(hidden, cell, tape), attended.weights.view(*rows, -1)

    def write(self, read: Memory, hidden: Tensor, cell: Tensor) -> Memory:
        """The new memory, with the tape that ``read`` was read from longer by it."""
        prepared = self.attention.score.prepare(hidden.flatten(0, -2).unsqueeze(1))
        prepared = prepared.view(*hidden.shape[:-1], 1, -1)  # (B, *R, 1, A)
        values = torch.cat([hidden, cell], -1).unsqueeze(-2)
        if read.tape is not None:
            prepared = torch.cat([read.tape.prepared, prepared], -2)
            values = torch.cat([read.tape.values, values], -2)
        return Memory(hidden, cell, Tape(prepared, values, read.hidden))


class RecurrentDecoder(WordDecoder, abstract=True):
    """Base of the LSTM decoders: h_0 and c_0 from two MLPs of the mean annotation (Xu et al. 2015).

    A subclass makes ``lstm``, whose weights a ``Recurrence`` uses.

    Args:
        vocab_size: V.
        annotation_dim: D, the width of an annotation vector.
        attention: makes the attention, given ``query_dim`` and ``memory_dim``.
        hidden: n, the width of the LSTM's memory.
        embedding: m, the width of a word embedding.
        dropout: probability of dropping a component while training.
        tied: whether the output layer is the embedding matrix.
        intra_attention: the width of the LSTM's input if it looks back at all its memories.
    """

    lstm: nn.LSTMCell | nn.LSTM

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        attention: AttentionFactory,
        hidden: int,
        embedding: int,
        dropout: float,
        tied: bool,
        intra_attention: int | None,
    ) -> None:
        super().__init__(vocab_size, embedding, dropout, tied)
        self.attention = attention(query_dim=hidden, memory_dim=annotation_dim)
        self.start_hidden = nn.Sequential(Linear(annotation_dim, hidden), nn.Tanh())
        self.start_cell = nn.Sequential(Linear(annotation_dim, hidden), nn.Tanh())
        self.intra = None if intra_attention is None else IntraAttention(intra_attention, hidden)
        if self.intra is not None and self.attention.distribution.branches:
            raise ModelError("a tape of memories cannot branch: gradient: marginal without intra")

    @property
    def mechanism(self) -> str:
        """What it attends to the picture with, and to what it wrote."""
        back = "" if self.intra is None else ", intra-attention"
        return f"{type(self).__name__}: {self.attention.mechanism}{back}"

    @property
    def window(self) -> int | None:
        """Of local attention."""
        return getattr(self.attention.distribution, "window", None)

    def start(self, annotations: Annotations) -> LSTMState:
        """h_0 and c_0 from the mean annotation; the keys, once per picture."""
        mean = annotations.mean()
        memory = Memory(self.start_hidden(mean), self.start_cell(mean))
        return LSTMState(memory, self.attention.prepare(annotations), Recurrence(self.lstm))

    def keep(self, state: Any, rows: int) -> Any:
        """The state of the first ``rows`` rows of each picture."""
        hidden = state.memory.hidden
        if hidden.shape[1] == rows:
            return state
        return state.select(torch.arange(rows, device=hidden.device).expand(len(hidden), -1))

    def update(
        self,
        inputs: Float[Tensor, "B *R i"],
        memory: Memory,
        recurrence: Recurrence,
        wanted: Bool[Tensor, " B *R"] | None = None,
    ) -> tuple[Memory, Float[Tensor, "B *R t"]]:
        """The memory after one more word, and how much each of t earlier ones counted in it.

        Of rows that are not wanted, anything.
        """
        rows = inputs.shape[:-1]
        read, looked = memory, inputs.new_zeros(*rows, 0)
        if self.intra is not None:
            read, looked = self.intra.read(inputs, memory)
        flat = (inputs.flatten(0, -2), read.hidden.flatten(0, -2), read.cell.flatten(0, -2))
        some = None if wanted is None else wanted.flatten()
        hidden, cell = (new.view(*rows, -1) for new in recurrence(*flat, some))
        if self.intra is None:
            return Memory(hidden, cell), looked
        return self.intra.write(read, hidden, cell), looked

    def decoded(
        self,
        said: Float[Tensor, "N V"],
        there: Bool[Tensor, "B R T"],
        attended: Attended,
        looked: list[Tensor],
        detail: Detail,
    ) -> Decoded:
        """All steps of a caption, with as much detail as was asked for.

        Args:
            said: the scores of the next word, at some steps.
            there: which; a caption has something to say after no others.
            attended: what attention found, of all steps.
            looked: what ``update`` said of every step.
            detail: how much to say.
        """
        everything = detail == "all"
        heads = attended.heads
        past = None
        if everything and self.intra is not None:
            # One layer, one head.
            past = torch.stack(
                [F.pad(step, (0, len(looked) - step.shape[-1])) for step in looked], -2
            )[..., None, None, :]
        return Decoded(
            said,
            attended.weights,
            attended.log_prob,
            attended.entropy,
            attended.centre,
            attended.expected,
            heads.unsqueeze(-3) if everything and heads is not None else None,
            past,
            there,
        )
