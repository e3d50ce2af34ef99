"""The Transformer decoder (Vaswani et al. 2017), attending through any attention of the package."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from captioner.errors import ModelError
from captioner.models.annotations import Annotations
from captioner.models.attention.attention import Attended, Keys
from captioner.models.attention.multihead import MultiHead
from captioner.models.attention.self_attention import SelfAttention, causal
from captioner.models.decoder import Decoded, Detail, WordDecoder, gather_rows, unfinished
from captioner.models.linear import Linear
from captioner.models.packing import Packing, rounded
from captioner.models.positions import sinusoids
from captioner.models.recurrent import AttentionFactory


@dataclass(frozen=True)
class TransformerState:
    """What the decoder knows between two words.

    Attributes:
        past: keys and values of the P words so far, of every layer, side by side; R rows.
        keys: what the cross-attention of every layer computed once per picture.
    """

    past: tuple[Float[Tensor, "B R P dd"], ...]
    keys: tuple[Keys, ...]

    @property
    def words(self) -> int:
        """How many words have been fed in."""
        return self.past[0].shape[2]

    def select(self, rows: Int[Tensor, "B K"]) -> "TransformerState":
        """The state in which row k of picture b continues what row ``rows[b, k]`` remembered."""
        return replace(self, past=tuple(gather_rows(past, rows, 2) for past in self.past))


class Layer(nn.Module):
    """Self-attention, cross-attention, feed-forward: each on a normed input, added to it (pre-norm).

    Args:
        dim: d, the width of everything.
        heads: of the self-attention.
        feed_forward: the width of the hidden layer.
        dropout: probability of dropping a component of what is added, while training.
        attention: makes the cross-attention.
    """

    def __init__(
        self, dim: int, heads: int, feed_forward: int, dropout: float, attention: AttentionFactory
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.self_attention = SelfAttention(dim, heads)
        self.attention = attention(query_dim=dim, memory_dim=dim)
        if self.attention.distribution.branches:
            raise ModelError(
                "gradient: marginal tries every position in an LSTM decoder; in a Transformer, whose "
                "layers all look, choose the gradient straight_through or score_function"
            )
        self.feed_forward = nn.Sequential(
            Linear(dim, feed_forward),
            nn.ReLU(),
            nn.Dropout(dropout),
            Linear(feed_forward, dim),
        )
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        words: Float[Tensor, "N d"],
        packing: Packing,
        step: Int[Tensor, "B W"],
        past: Float[Tensor, "B R P dd"],
        keys: Keys,
        need_weights: bool,
        need_past: bool,
    ) -> tuple[Tensor, Attended, Tensor | None, Tensor]:
        """The words described anew; what those of each picture looked at; what of the past; the past
        with them."""
        pictures, rows, length = packing.shape
        before, own, normed = past.shape[2], self.self_attention, self.norms[0](words)
        found, looked, past = own.attend(
            packing.unpack(own.query(normed)).flatten(0, 1),
            packing.unpack(own.key_value(normed)).flatten(0, 1),
            causal(length, before, words.device),
            past.flatten(0, 1),
            need_past,
        )
        found = packing.pack(found.view(pictures, rows, length, -1))
        words = words + self.dropout(own.output(found))
        queries = packing.by_picture(self.norms[1](words))
        attended = self.attention(queries, keys, step, need_weights)
        words = words + self.dropout(packing.from_pictures(attended.context).to(words.dtype))
        words = words + self.dropout(self.feed_forward(self.norms[2](words)))
        if looked is not None:
            looked = looked.view(pictures, rows, length, *looked.shape[2:])
        return words, attended, looked, past.view(pictures, rows, *past.shape[1:])


class TransformerDecoder(WordDecoder):
    """Causal self-attention over the words, cross-attention to the annotations (arXiv 1706.03762).

    Words are embeddings times √d plus sinusoidal positions; N layers, pre-norm; the output layer
    reads the norm of the last. Annotations of another width than d are projected to it. When
    generating, keys and values of earlier words are kept. What is shown for a word is the mean over
    the heads of the last layer; the other layers' weights are made only if asked for.

    Args:
        vocab_size: V.
        annotation_dim: D, the width of an annotation vector.
        attention: makes every layer's cross-attention, given ``query_dim`` and ``memory_dim``.
        dim: d, the width of everything; a multiple of ``heads``, even.
        layers: N.
        heads: of the self-attention.
        feed_forward: the width of the feed-forward networks' hidden layer.
        dropout: probability of dropping a component of the embeddings, of what each part adds, and
            of what the output layer reads.
        tied: whether the output layer is the embedding matrix.

    Raises:
        ModelError: the heads do not divide the width, it is odd, or there are no layers.
    """

    def __init__(
        self,
        vocab_size: int,
        annotation_dim: int,
        attention: AttentionFactory = MultiHead,
        dim: int = 512,
        layers: int = 3,
        heads: int = 8,
        feed_forward: int = 2048,
        dropout: float = 0.1,
        tied: bool = True,
    ) -> None:
        if dim % 2 or layers < 1:
            raise ModelError(
                f"a Transformer needs an even width and 1 layer or more, got {dim} and {layers}"
            )
        super().__init__(vocab_size, dim, dropout, tied, spread=0.25 / math.sqrt(dim))
        self.memory = (
            nn.Identity() if annotation_dim == dim else Linear(annotation_dim, dim, bias=False)
        )
        self.layers = nn.ModuleList(
            Layer(dim, heads, feed_forward, dropout, attention) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    @property
    def mechanism(self) -> str:
        """Its cross-attention."""
        layers = self._layers()
        return f"{type(self).__name__} × {len(layers)}: {layers[-1].attention.mechanism}"

    @property
    def window(self) -> int | None:
        """Of local attention, in the layer that is shown."""
        return getattr(self._layers()[-1].attention.distribution, "window", None)

    def start(self, annotations: Annotations) -> TransformerState:
        """No words yet; the keys of every layer, once per picture."""
        memory = annotations.with_vectors(self.memory(annotations.vectors))
        empty = memory.vectors.new_zeros(len(memory), 1, 0, 2 * self.embedding.embedding_dim)
        return TransformerState(
            tuple(empty for _ in self.layers),
            tuple(layer.attention.prepare(memory) for layer in self._layers()),
        )

    def step(
        self, tokens: Int[Tensor, " B *R"], state: TransformerState
    ) -> tuple[Float[Tensor, "B *R V"], Float[Tensor, "B *R L"], TransformerState]:
        """One word in, the scores of the next out: (logits, weights, state)."""
        decoded, state = self._advance(tokens.view(len(tokens), -1, 1), state, "shown")
        assert decoded.weights is not None
        shape = tokens.shape
        return decoded.logits.view(*shape, -1), decoded.weights.view(*shape, -1), state

    def teach(
        self, annotations: Annotations, tokens: Int[Tensor, "B R T"], detail: Detail
    ) -> Decoded:
        """All words at once."""
        there = rounded(unfinished(tokens))
        decoded, _ = self._advance(tokens, self.begin(annotations, tokens), detail, there)
        return decoded

    def _advance(
        self,
        tokens: Int[Tensor, "B R T"],
        state: TransformerState,
        detail: Detail,
        there: Bool[Tensor, "B R T"] | None = None,
    ) -> tuple[Decoded, TransformerState]:
        """T more words of every row, the next ones scored ``there``, or everywhere."""
        length, dim = tokens.shape[-1], self.embedding.embedding_dim
        places = torch.arange(state.words, state.words + length, device=tokens.device)
        packing = Packing(tokens.shape, there)
        words = math.sqrt(dim) * self.embedding(tokens)
        words = self.dropout(packing.pack(words + sinusoids(places.to(words.dtype), dim)))
        asked = packing.by_picture(packing.pack(places.expand(tokens.shape)))
        steps, looks, pasts = [], [], []
        for number, (layer, past, keys) in enumerate(
            zip(self._layers(), state.past, state.keys, strict=True), 1
        ):
            shown = detail == "shown" and number == len(self.layers)
            everything = detail == "all"
            words, attended, looked, past = layer(
                *(words, packing, asked, past, keys, shown or everything, everything)
            )
            steps.append(attended)
            looks.append(looked)
            pasts.append(past)
        said = self.output(self.dropout(self.norm(words)))

        def everywhere(values: Tensor | None) -> Tensor | None:
            """Something of the words of each picture, at every step; zeros where no word is."""
            return None if values is None else packing.unpack(packing.from_pictures(values))

        decoded = Decoded(
            said if there is not None else packing.unpack(said),
            everywhere(steps[-1].weights),
            everywhere(_sum([step.log_prob for step in steps])),
            everywhere(_sum([step.entropy for step in steps])),
            everywhere(steps[-1].centre),
            everywhere(steps[-1].expected),
            there=there,
        )
        if detail == "all":
            heads = [
                step.weights.unsqueeze(-2) if step.heads is None else step.heads for step in steps
            ]
            layers = everywhere(torch.stack(heads, 2))
            decoded = replace(decoded, layers=layers, past=torch.stack(looks, 3))
        return decoded, TransformerState(tuple(pasts), state.keys)

    def _layers(self) -> list[Layer]:
        return list(self.layers)  # type: ignore[arg-type]


def _sum(values: list[Tensor | None]) -> Tensor | None:
    """Layers draw independently: log-probabilities and entropies add up."""
    return None if values[0] is None else torch.stack([v for v in values if v is not None]).sum(0)
