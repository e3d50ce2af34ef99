"""The LSTM decoder of Luong, Pham, Manning: update, then attend."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Attention, with_rows
from captioner.models.decoder import (
    Decoded,
    Detail,
    gather_rows,
    mixture,
    repeat,
    rows_at_work,
    unfinished,
)
from captioner.models.linear import Linear
from captioner.models.packing import Packing, rounded
from captioner.models.recurrent import AttentionFactory, LSTMState, RecurrentDecoder


@dataclass(frozen=True)
class LuongState(LSTMState):
    """What the decoder knows between two words.

    Attributes:
        attentional: h̃_t, for every row of every picture; what input feeding feeds. None before the
            first word.
    """

    attentional: Float[Tensor, "B *R m"] | None = None

    def select(self, rows: Int[Tensor, "B K"]) -> "LuongState":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        fed = self.attentional
        fed = None if fed is None else gather_rows(fed, rows)
        return replace(self, memory=self.memory.select(rows), attentional=fed)


class LuongDecoder(RecurrentDecoder):
    """Update, then attend (Luong, Pham, Manning 2015, arXiv 1508.04025, §3).

    At step t, with h and c the LSTM's memory, E the word embeddings, and a the annotations::

        h_t, c_t = LSTM([E y_{t-1}; h̃_{t-1}], h_{t-1}, c_{t-1})
        ẑ_t = A(h_t, a)
        h̃_t = tanh(W_c [ẑ_t; h_t])              eq. 5
        p(y_t) = softmax(W_s h̃_t)               eq. 6

    and h_0, c_0 from two MLPs of the mean annotation, as in Xu et al. 2015; h̃_0 = 0. Feeding h̃ into
    the next step (§3.3) tells the decoder where it looked before. Without it all words of a training
    caption are computed at once: the LSTM in one fused call, the attention in one product.

    Args:
        vocab_size: V.
        annotation_dim: D, the width of an annotation vector.
        attention: makes the attention, given ``query_dim`` and ``memory_dim``.
        hidden: n, the width of the LSTM's memory.
        embedding: m, the width of a word embedding and of h̃.
        dropout: probability of dropping a component of the embeddings and of h̃ before the output.
        input_feeding: whether h̃_{t-1} is part of the input.
        tied: whether the output layer W_s is the embedding matrix E.
        intra: whether the LSTM looks back at all its memories: ``IntraAttention``.
    """

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        attention: AttentionFactory = Attention,
        hidden: int = 512,
        embedding: int = 384,
        dropout: float = 0.5,
        input_feeding: bool = True,
        tied: bool = True,
        intra: bool = False,
    ) -> None:
        inputs = embedding * (2 if input_feeding else 1)
        super().__init__(
            *(vocab_size, annotation_dim, attention, hidden, embedding, dropout, tied),
            inputs if intra else None,
        )
        self.input_feeding = input_feeding
        self.lstm = nn.LSTM(inputs, hidden, batch_first=True)
        self.attentional = Linear(annotation_dim + hidden, embedding, bias=False)

    def train(self, mode: bool = True) -> "LuongDecoder":
        """The LSTM has no dropout, and stays in the mode in which alone cuDNN gives it gradients."""
        super().train(mode)
        self.lstm.train()
        return self

    def start(self, annotations: Annotations) -> LuongState:
        """h_0 and c_0 from the mean annotation; the keys, once per picture."""
        state = super().start(annotations)
        return LuongState(state.memory, state.keys, state.recurrence)

    def step(
        self, tokens: Int[Tensor, " B *R"], state: LuongState
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], LuongState]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        embedded = self.dropout(self.embedding(tokens))  # (B, *R, m)
        attended, _, state = self._advance(embedded, state, need_weights=True)
        assert attended.weights is not None
        return self._read_out(attended).squeeze(-2), attended.weights.squeeze(-2), state

    def teach(
        self, annotations: Annotations, tokens: Int[Tensor, "B R T"], detail: Detail
    ) -> Decoded:
        """The vocabulary is projected once, for the words there are."""
        state = self.begin(annotations, tokens)
        embedded = self.dropout(self.embedding(tokens))  # (B, R, T, m)
        need_weights = detail != "none"
        looked: list[Tensor] = []
        there = unfinished(tokens)
        if self.input_feeding or self.intra is not None:
            steps: list[Attended] = []
            for t, (word, rows) in enumerate(
                zip(embedded.unbind(2), rows_at_work(there), strict=True)
            ):
                state = self.keep(state, rows)
                attended, looks, state = self._advance(
                    word[:, :rows], state, need_weights, there[:, :rows, t]
                )
                steps.append(attended.with_rows(tokens.shape[1]))
                looked.append(with_rows(looks, tokens.shape[1]))
            attended = Attended.cat(steps)
            there = rounded(there)
            said = self._read_out(attended.at(there))
        else:
            memory = (state.memory.hidden.flatten(0, -2), state.memory.cell.flatten(0, -2))
            hidden, _ = self.lstm(embedded.flatten(0, -3), tuple(m.unsqueeze(0) for m in memory))
            there = rounded(there)
            packing = Packing(tokens.shape, there)
            attended = self._attend(hidden.view(*tokens.shape, -1), state, need_weights, packing)
            said = self._read_out(attended)
            attended = attended.without_values().each(packing.unpack)
        return self.decoded(said, there, attended, looked, detail)

    def _advance(
        self,
        embedded: Float[Tensor, "B *R m"],
        state: LuongState,
        need_weights: bool,
        wanted: Bool[Tensor, "B R"] | None = None,
    ) -> tuple[Attended, Tensor, LuongState]:
        """Update with one word, then attend with the new memory. The context returned is h̃."""
        inputs = embedded
        if self.input_feeding:
            fed = state.attentional
            fed = torch.zeros_like(embedded) if fed is None else fed.to(embedded.dtype)
            inputs = torch.cat([embedded, fed], -1)
        memory, looked = self.update(inputs, state.memory, state.recurrence, wanted)
        hidden = memory.hidden.unsqueeze(-2)
        packing = Packing(hidden.shape[:-1])
        attended = self._attend(hidden, state, need_weights, packing).each(packing.unpack)
        attentional = attended.context.squeeze(-2)
        state = replace(state, memory=memory, words=state.words + 1, attentional=attentional)
        return attended, looked, state

    def _attend(
        self,
        hidden: Float[Tensor, "B *R T n"],
        state: LuongState,
        need_weights: bool,
        packing: Packing,
    ) -> Attended:
        """Attend with the memories of N words at once. The context returned is h̃, their mean where
        several positions are tried; the choices are the h̃ of each."""
        step = state.words + torch.arange(hidden.shape[-2], device=hidden.device)
        step = packing.by_picture(packing.pack(step.expand(packing.shape)))
        words = packing.pack(hidden)  # (N, n)
        queries = packing.by_picture(words)
        attended = self.attention(queries, state.keys, step, need_weights)
        attended = attended.each(packing.from_pictures)
        if attended.choices is None or attended.chances is None:
            return replace(attended, context=self._combine(attended.context, words))
        ways = attended.chances.unsqueeze(-1)  # (N, k, 1)
        tried = self._combine(attended.choices, repeat(words, ways.shape[-2]))
        return replace(attended, context=(ways * tried).sum(-2), choices=tried)

    def _combine(
        self, context: Float[Tensor, "*rows D"], hidden: Float[Tensor, "*rows n"]
    ) -> Float[Tensor, "*rows m"]:
        """h̃ (eq. 5)."""
        return torch.tanh(self.attentional(torch.cat([context.to(hidden.dtype), hidden], -1)))

    def _read_out(self, attended: Attended) -> Float[Tensor, "B *R V"]:
        """The scores of the next word, mixed where several positions were tried."""
        if attended.choices is None or attended.chances is None:
            return self.output(self.dropout(attended.context))
        return mixture(self.output(self.dropout(attended.choices)), attended.chances)
