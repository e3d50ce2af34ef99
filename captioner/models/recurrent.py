"""The base of the LSTM decoders: memory, attention to earlier memories, loop over time."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention import Attention, AttentionFactory, AttentionOutput, Keys
from captioner.models.decoder import Decoded, StepResult, WordDecoder
from captioner.models.distributions import Sampling
from captioner.models.packing import Packing, batch_sizes, pad_to_multiple, unfinished
from captioner.models.scores import Additive
from captioner.models.tensors import gather_rows, map_tensors

Embedded = Float[Tensor, "*rows m"]
Memory = tuple[Float[Tensor, "*rows n"], Float[Tensor, "*rows n"]]  # h and c
Cell = Callable[[Tensor, Memory], Memory]  # as nn.LSTMCell


@dataclass(frozen=True)
class Tape:
    """The memories of an LSTMN after each of t words (Cheng et al. 2016)."""

    keys: Float[Tensor, "B R t A"]  # h_1 … h_t, projected for the score
    values: Float[Tensor, "B R t nn"]  # [h_1; c_1] … [h_t; c_t]
    summary: Float[Tensor, "B R n"]  # h̃_t of the last step


@dataclass(frozen=True)
class LSTMMemory:
    """The memory of every row of every image."""

    hidden: Float[Tensor, "B R n"]  # h_t
    cell: Float[Tensor, "B R n"]  # c_t
    # Of some decoders, after the first word:
    attentional: Float[Tensor, "B R m"] | None = None  # h̃_t, which is fed into the next step
    language: Memory | None = None  # h²_t and c²_t of ``TopDownDecoder``
    tape: Tape | None = None  # of intra-attention


@dataclass(frozen=True)
class LSTMState:
    """The state of an LSTM decoder between two words."""

    memory: LSTMMemory
    keys: Keys
    mean: Float[Tensor, "B D"]  # ā, the mean annotation
    step: int = 0  # the index of the next word

    def reorder(self, rows: Int[Tensor, "B K"]) -> "LSTMState":
        """Return the state whose row k of image b continues row ``rows[b, k]``."""
        return replace(self, memory=gather_rows(self.memory, rows))

    def after(self, memory: LSTMMemory) -> "LSTMState":
        """Return the state after one more word."""
        return replace(self, memory=memory, step=self.step + 1)


@dataclass(frozen=True)
class StepOutput:
    """The results of one step (B, R, …), of all steps (B, R, T, …), or of packed steps (N, …)."""

    hidden: Float[Tensor, "*rows n"]  # h_t, or Luong's h̃_t
    attention: AttentionOutput
    past_weights: Float[Tensor, "*rows t"] | None = None  # intra-attention to earlier memories


class IntraAttention(nn.Module):
    """Attention of an LSTM to all its earlier memories (Cheng, Dong, Lapata 2016).

    The LSTMN of arXiv 1601.06733, eq. 4 to 6. With x_t the input::

        s = softmax_i(vᵀ tanh(W_h h_i + W_x x_t + W_h̃ h̃_{t-1}))      over i = 1 … t-1
        h̃_t = Σ s_i h_i     c̃_t = Σ s_i c_i

    and (h̃_t, c̃_t) replace (h_{t-1}, c_{t-1}) in the update of the LSTM, except in the first one.
    """

    def __init__(self, input_dim: int, hidden: int) -> None:
        super().__init__()
        self.attention = Attention(input_dim + hidden, hidden, partial(Additive, dim=hidden))

    def summarize(self, inputs: Tensor, memory: LSTMMemory) -> tuple[Tensor, Tensor, Tensor]:
        """Return h̃_t, c̃_t and the weights of the earlier memories."""
        tape, rows = memory.tape, inputs.shape[:-1]
        if tape is None:
            return memory.hidden, memory.cell, inputs.new_zeros(*rows, 0)
        query = torch.cat([inputs, tape.summary], -1).flatten(0, 1)
        # Every row has its own tape, as every image has its own annotations.
        keys, values = tape.keys.flatten(0, 1), tape.values.flatten(0, 1)
        attention = self.attention(query, Keys(keys, values, None, (1, values.shape[1])))
        hidden, cell = attention.context.to(inputs.dtype).view(*rows, -1).chunk(2, -1)
        return hidden, cell, attention.weights.view(*rows, -1)

    def append(self, tape: Tape | None, hidden: Tensor, cell: Tensor, summary: Tensor) -> Tape:
        """Append h_t and c_t to the tape."""
        keys = self.attention.score.prepare(hidden.flatten(0, 1).unsqueeze(1))
        keys = keys.view(*hidden.shape[:2], 1, -1)
        values = torch.cat([hidden, cell], -1).unsqueeze(2)
        if tape is not None:
            keys, values = torch.cat([tape.keys, keys], 2), torch.cat([tape.values, values], 2)
        return Tape(keys, values, summary)


class RecurrentDecoder(WordDecoder, abstract=True):
    """Base of the LSTM decoders: initial memory, update, and the loop over time.

    Two MLPs of the mean annotation give h_0 and c_0 (Xu et al. 2015). A subclass defines ``advance``,
    ``read_out`` and ``lstm``, whose inputs have ``input_dim(m)`` components.

    Args:
        attention: makes the attention, given ``query_dim`` and ``key_dim``.
        hidden: n, the width of the LSTM's memory.
        embedding: m, the width of a word embedding.
        dropout: probability of dropping a component of the embeddings and of the vectors that the
            output layer reads.
        tied: use the embedding matrix as output layer.
        intra: attend to all earlier memories, see ``IntraAttention``.
    """

    lstm: nn.LSTMCell | nn.LSTM

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        input_dim: Callable[[int], int],
        /,
        attention: AttentionFactory = Attention,
        hidden: int = 512,
        embedding: int = 384,
        dropout: float = 0.5,
        tied: bool = True,
        intra: bool = False,
    ) -> None:
        super().__init__(vocab_size, embedding, dropout, tied)
        self.hidden, self.input_dim = hidden, input_dim(embedding)
        self.attention = attention(hidden, annotation_dim)
        self.start_hidden = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.start_cell = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.intra = IntraAttention(self.input_dim, hidden) if intra else None

    @property
    def mechanism(self) -> str:
        intra = "" if self.intra is None else ", intra-attention"
        return f"{type(self).__name__}: {self.attention.mechanism}{intra}"

    def init_state(
        self, annotations: Annotations, rows: int = 1, sampling: Sampling | None = None
    ) -> LSTMState:
        """Return h_0 and c_0, and the attention keys of every image."""
        mean = annotations.mean()
        starts = (self.start_hidden, self.start_cell)
        memory = LSTMMemory(*(start(mean).unsqueeze(1).expand(-1, rows, -1) for start in starts))
        return LSTMState(memory, self.attention.prepare(annotations, sampling=sampling), mean)

    def read(self, tokens: Int[Tensor, "B R"], state: LSTMState) -> StepResult:
        embedded = self.dropout(self.embedding(tokens))  # (B, R, m)
        output, state = self.advance(embedded, state, self.lstm_cell)
        return self.read_out(embedded, output), output.attention.weights, state

    def teacher_force(
        self, tokens: Int[Tensor, "B R T"], state: LSTMState, details: bool
    ) -> Decoded:
        """Run all steps, then compute the logits of all valid steps in one product."""
        active = unfinished(tokens)
        packing = Packing(pad_to_multiple(active))
        embedded = self.dropout(self.embedding(tokens))  # (B, R, T, m)
        output = self.unroll(embedded, active, state)
        logits = self.read_out(packing.pack(embedded), map_tensors(packing.pack, output))
        attention, layers, past = output.attention, None, None
        if details and attention.heads is not None:
            layers = attention.heads.unsqueeze(3)  # one layer
        if details and output.past_weights is not None:
            past = output.past_weights[..., None, None, :]  # one layer with one head
        shown = attention.weights, attention.centre, attention.choice
        return Decoded(logits, *shown, layers, past, packing.valid_mask)

    def unroll(
        self, embedded: Embedded, active: Bool[Tensor, "B R T"], state: LSTMState
    ) -> StepOutput:
        """Run all steps, each on the leading rows that ``batch_sizes`` gives for it."""
        _, rows, length = active.shape
        sizes, steps = batch_sizes(active), []
        for t, (size, cell) in enumerate(zip(sizes, self.lstm_cells(active, sizes), strict=False)):
            memory = map_tensors(partial(_pad_rows, rows=size), state.memory)
            state = replace(state, memory=memory)
            output, state = self.advance(embedded[:, :size, t], state, cell)
            if output.past_weights is not None:
                padded = F.pad(output.past_weights, (0, length - t))
                output = replace(output, past_weights=padded)
            steps.append(map_tensors(partial(_pad_rows, rows=rows), output))
        return map_tensors(lambda *values: torch.stack(values, 2), *steps)

    def advance(
        self, embedded: Embedded, state: LSTMState, cell: Cell
    ) -> tuple[StepOutput, LSTMState]:
        """Run one step of attention and LSTM for embeddings (B, R, m), without the output layer."""
        raise NotImplementedError

    def read_out(self, embedded: Embedded, output: StepOutput) -> Float[Tensor, "*rows V"]:
        """Compute the logits of the next word."""
        raise NotImplementedError

    def lstm_cell(self, inputs: Float[Tensor, "N i"], memory: Memory) -> Memory:
        return self.lstm(inputs, memory)

    def lstm_cells(self, active: Bool[Tensor, "B R T"], sizes: list[int]) -> Iterable[Cell]:
        """Return the cell of every step of ``unroll``; ``captioner.fast`` overrides this."""
        return repeat(self.lstm_cell)

    def update(
        self, inputs: Float[Tensor, "B R i"], memory: LSTMMemory, cell: Cell
    ) -> tuple[LSTMMemory, Float[Tensor, "B R t"] | None]:
        """Return the memory after one more input, and the intra-attention weights."""
        if self.intra is None:
            hidden, cells = run_cell(cell, inputs, (memory.hidden, memory.cell))
            return replace(memory, hidden=hidden, cell=cells), None
        summary, cells, past_weights = self.intra.summarize(inputs, memory)
        hidden, cells = run_cell(cell, inputs, (summary, cells))
        tape = self.intra.append(memory.tape, hidden, cells, summary)
        return replace(memory, hidden=hidden, cell=cells, tape=tape), past_weights


def run_cell(cell: Cell, inputs: Float[Tensor, "B R i"], memory: Memory) -> Memory:
    """Run a cell for all rows (B, R, n) of its memory h and c."""
    flat = map_tensors(lambda part: part.flatten(0, 1), memory)
    updated = cell(inputs.flatten(0, 1), flat)
    return map_tensors(lambda part: torch.unflatten(part, 0, inputs.shape[:2]), updated)


def append_mean(
    embedded: Float[Tensor, "B *rows m"], mean: Float[Tensor, "B D"]
) -> Float[Tensor, "B *rows mD"]:
    """Append the mean annotation of its image to every embedding: [E y; ā]."""
    mean = mean.view(len(mean), *[1] * (embedded.ndim - 2), -1).to(embedded.dtype)
    return torch.cat([embedded, mean.expand(*embedded.shape[:-1], -1)], -1)


def _pad_rows(values: Shaped[Tensor, "B R *more"], rows: int) -> Shaped[Tensor, "B K *more"]:
    """Return the first ``rows`` rows of each image, with rows of zeros if there are fewer."""
    missing = max(0, rows - values.shape[1])
    return F.pad(values[:, :rows], (0, 0) * (values.ndim - 2) + (0, missing))
