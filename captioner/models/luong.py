"""The LSTM decoder of Luong, Pham, Manning: update, then attend."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Attention, Keys
from captioner.models.decoder import Decoded, Decoder
from captioner.models.lstm import AttentionFactory, gather_rows


@dataclass(frozen=True)
class LuongState:
    """Memory of the decoder.

    Attributes:
        hidden: h_t, for every row of every picture.
        cell: c_t, likewise.
        attentional: h̃_t, likewise; what input feeding feeds.
        keys: what the attention computed once per picture.
        words: how many words have been fed in.
    """

    hidden: Float[Tensor, "B *R n"]
    cell: Float[Tensor, "B *R n"]
    attentional: Float[Tensor, "B *R m"]
    keys: Keys
    words: int = 0

    def select(self, rows: Int[Tensor, "B K"]) -> "LuongState":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        return LuongState(
            gather_rows(self.hidden, rows),
            gather_rows(self.cell, rows),
            gather_rows(self.attentional, rows),
            self.keys,
            self.words,
        )


class LuongDecoder(Decoder):
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
    ) -> None:
        super().__init__()
        self.input_feeding = input_feeding
        self.embedding = nn.Embedding(vocab_size, embedding)
        self.attention = attention(query_dim=hidden, memory_dim=annotation_dim)
        self.lstm = nn.LSTM(embedding * (2 if input_feeding else 1), hidden, batch_first=True)
        self.start_hidden = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.start_cell = nn.Sequential(nn.Linear(annotation_dim, hidden), nn.Tanh())
        self.attentional = nn.Linear(annotation_dim + hidden, embedding, bias=False)
        self.output = nn.Linear(embedding, vocab_size)
        self.dropout = nn.Dropout(dropout)
        if tied:
            nn.init.normal_(self.embedding.weight, std=0.05)  # as LSTMDecoder
            self.output.weight = self.embedding.weight

    def start(self, annotations: Annotations) -> LuongState:
        """h_0 and c_0 from the mean annotation, h̃_0 = 0; the keys, once per picture."""
        mean = annotations.mean()
        return LuongState(
            self.start_hidden(mean),
            self.start_cell(mean),
            mean.new_zeros(len(mean), self.embedding.embedding_dim),
            self.attention.prepare(annotations),
        )

    def step(
        self, tokens: Int[Tensor, "B *R"], state: LuongState
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], LuongState]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        embedded = self.dropout(self.embedding(tokens))  # (B, *R, m)
        attended, state = self._advance(embedded.unsqueeze(-2), state)
        return self._read_out(state.attentional), attended.weights.squeeze(-2), state

    def forward(self, annotations: Annotations, tokens: Int[Tensor, "B *R T"]) -> Decoded:
        """Teacher forcing; the vocabulary is projected once."""
        state = self.start(annotations)
        if tokens.ndim == 3:
            state = state.select(torch.zeros_like(tokens[:, :, 0]))
        embedded = self.dropout(self.embedding(tokens))  # (B, *R, T, m)
        if self.input_feeding:
            steps: list[Attended] = []
            for word in embedded.split(1, -2):
                attended, state = self._advance(word, state)
                steps.append(attended)
            attended = Attended.cat(steps)
        else:
            attended, _ = self._advance(embedded, state)
        return Decoded(
            self._read_out(attended.context), attended.weights, attended.log_prob, attended.entropy
        )

    def _advance(
        self, embedded: Float[Tensor, "B *R T m"], state: LuongState
    ) -> tuple[Attended, LuongState]:
        """Update with T words, then attend with all T memories. The context returned is h̃."""
        *rows, words, _ = embedded.shape
        inputs = embedded
        if self.input_feeding:
            inputs = torch.cat([embedded, state.attentional.unsqueeze(-2)], -1)  # T is 1
        memory = (state.hidden.flatten(0, -2).unsqueeze(0), state.cell.flatten(0, -2).unsqueeze(0))
        hidden, (_, cell) = self.lstm(inputs.flatten(0, -3), memory)
        hidden = hidden.view(*rows, words, -1)

        # Several captions of a picture are queries of one attention.
        step = state.words + torch.arange(words, device=embedded.device)
        queries = hidden.flatten(1, -2)  # (B, R·T, n)
        attended = self.attention(queries, state.keys, step=step.repeat(queries.shape[1] // words))
        attended = attended.reshape((*rows[1:], words))
        joined = torch.cat([attended.context.to(hidden.dtype), hidden], -1)
        attentional = torch.tanh(self.attentional(joined))
        state = LuongState(
            hidden[..., -1, :],
            cell.view_as(state.cell),
            attentional[..., -1, :],
            state.keys,
            state.words + words,
        )
        return replace(attended, context=attentional), state

    def _read_out(self, attentional: Float[Tensor, "B *R m"]) -> Float[Tensor, "B *R V"]:
        """The scores of the next word."""
        return self.output(self.dropout(attentional))
