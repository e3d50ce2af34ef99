"""The Transformer decoder (Vaswani et al. 2017), with any attention of the package."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from captioner.models.annotations import Annotations
from captioner.models.attention import AttentionFactory, AttentionOutput, Keys
from captioner.models.decoder import Decoded, StepResult, WordDecoder
from captioner.models.distributions import Choice, Sampling
from captioner.models.multihead import MultiHead, SelfAttention, causal, feed_forward_network
from captioner.models.packing import Packing, pad_to_multiple, unfinished
from captioner.models.positions import sinusoids
from captioner.models.registry import require
from captioner.models.tensors import gather_rows, map_tensors

Cache = Float[Tensor, "B R P dd"]


@dataclass(frozen=True)
class TransformerState:
    """The state of every layer between two words."""

    cache: tuple[Cache, ...]  # self-attention keys and values of the P words so far
    keys: tuple[Keys, ...]  # of the cross-attention

    def reorder(self, rows: Int[Tensor, "B K"]) -> "TransformerState":
        """Return the state whose row k of image b continues row ``rows[b, k]``."""
        return replace(self, cache=gather_rows(self.cache, rows))


class Layer(nn.Module):
    """One block of the decoder with pre-norm (Xiong et al. 2020, arXiv 2002.04745)::

    x = x + SelfAttention(LN(x))
    x = x + CrossAttention(LN(x), annotations)
    x = x + FFN(LN(x))            FFN(x) = W_2 max(0, W_1 x + b_1) + b_2
    """

    def __init__(
        self, dim: int, heads: int, feed_forward: int, dropout: float, attention: AttentionFactory
    ) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(3))
        self.self_attention = SelfAttention(dim, heads)
        self.attention = attention(dim, dim)
        self.feed_forward = feed_forward_network(dim, feed_forward, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "N d"],
        packing: Packing,
        step: Int[Tensor, "B W"],
        cache: Cache,
        keys: Keys,
    ) -> tuple[Tensor, AttentionOutput, Tensor, Tensor]:
        """Transform N words, packed from T words of R captions of B images.

        ``step`` is the index of each word in its caption, grouped by image. ``cache`` is that of the P
        words before. Returns the words, the output of the cross-attention grouped by image, the
        self-attention weights (B, R, T, h, P + T), and the cache including the words.
        """
        rows, length = packing.valid_mask.shape[:2], packing.valid_mask.shape[2]
        # The projections skip padding; self-attention takes every caption as one sequence.
        normed, attention = self.norms[0](x), self.self_attention
        query = packing.unpack(attention.query(normed))
        cache = torch.cat([cache, packing.unpack(attention.key_value(normed))], 2)
        mask = causal(length, cache.shape[2], x.device)
        context, past = attention.attend(query.flatten(0, 1), cache.flatten(0, 1), mask)
        context, past = (torch.unflatten(part, 0, rows) for part in (context, past))
        x = x + self.dropout(attention.output(packing.pack(context)))

        output = self.attention(packing.group_by_image(self.norms[1](x)), keys, step)
        x = x + self.dropout(packing.ungroup(output.context).to(x.dtype))

        x = x + self.dropout(self.feed_forward(self.norms[2](x)))
        return x, output, past, cache


class TransformerDecoder(WordDecoder):
    """Causal self-attention to the words, cross-attention to the annotations (arXiv 1706.03762).

    The inputs are embeddings times √d plus sinusoidal positions. A layer norm follows the last layer.
    Annotations are projected to width d if their width differs. The reported weights are the mean over
    the heads of the last layer.

    Args:
        attention: makes the cross-attention of every layer, given ``query_dim`` and ``key_dim``.
        dim: d, the width of all vectors; even, and a multiple of ``heads``.
        layers: number of layers.
        heads: number of heads of the self-attention.
        feed_forward: width of the hidden layer of the feed-forward networks.
        dropout: probability of dropping a component of the embeddings, of what every sublayer adds,
            and of the input of the output layer.
        tied: use the embedding matrix as output layer.
    """

    layers: Sequence[Layer]

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
        require(dim % 2 == 0, f"a Transformer needs an even width, got {dim=}")
        super().__init__(vocab_size, dim, dropout, tied, std=0.25 / math.sqrt(dim))
        self.project_annotations: nn.Module = (
            nn.Identity() if annotation_dim == dim else nn.Linear(annotation_dim, dim, bias=False)
        )
        self.layers = nn.ModuleList(  # type: ignore[assignment]
            Layer(dim, heads, feed_forward, dropout, attention) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(dim)

    @property
    def mechanism(self) -> str:
        mechanism = self.layers[-1].attention.mechanism
        return f"{type(self).__name__} × {len(self.layers)}: {mechanism}"

    def init_state(
        self, annotations: Annotations, rows: int = 1, sampling: Sampling | None = None
    ) -> TransformerState:
        """Return an empty cache, and the attention keys of every layer and image."""
        projected = annotations.map(self.project_annotations)
        width = 2 * self.embedding.embedding_dim
        empty = projected.vectors.new_zeros(len(annotations), rows, 0, width)
        keys = tuple(layer.attention.prepare(projected, sampling=sampling) for layer in self.layers)
        return TransformerState((empty,) * len(keys), keys)

    def read(self, tokens: Int[Tensor, "B R"], state: TransformerState) -> StepResult:
        packing = Packing(torch.ones_like(tokens, dtype=torch.bool).unsqueeze(-1))
        logits, outputs, _, state = self._run_layers(tokens.unsqueeze(-1), state, packing)
        weights = packing.ungroup(outputs[-1].weights)
        return logits.view(*tokens.shape, -1), weights.view(*tokens.shape, -1), state

    def teacher_force(
        self, tokens: Int[Tensor, "B R T"], state: TransformerState, details: bool
    ) -> Decoded:
        packing = Packing(pad_to_multiple(unfinished(tokens)))
        logits, outputs, past_weights, _ = self._run_layers(tokens, state, packing)

        last, layers, past = outputs[-1], None, None
        if details:
            layers = torch.stack([_heads(output) for output in outputs], 2)
            past = torch.stack(past_weights, 3)
        grouped = (last.weights, last.centre, _joint([output.choice for output in outputs]), layers)
        steps = map_tensors(lambda part: packing.unpack(packing.ungroup(part)), grouped)
        return Decoded(logits, *steps, past, packing.valid_mask)

    def _run_layers(
        self, tokens: Int[Tensor, "B R T"], state: TransformerState, packing: Packing
    ) -> tuple[Tensor, tuple[AttentionOutput, ...], tuple[Tensor, ...], TransformerState]:
        """Read T more tokens; return packed logits, two of every ``Layer``'s results, the new state."""
        dim, words = self.embedding.embedding_dim, state.cache[0].shape[2]
        positions = torch.arange(tokens.shape[-1], device=tokens.device) + words
        x = math.sqrt(dim) * self.embedding(tokens)
        x = self.dropout(packing.pack(x + sinusoids(positions.to(x.dtype), dim)))
        step = packing.group_by_image(packing.pack(positions.expand(tokens.shape)))
        results = []
        for layer, cache, keys in zip(self.layers, state.cache, state.keys, strict=True):
            x, *result = layer(x, packing, step, cache, keys)
            results.append(result)
        outputs, past_weights, caches = zip(*results, strict=True)
        logits = self.output(self.dropout(self.norm(x)))
        return logits, outputs, past_weights, TransformerState(caches, state.keys)


def _heads(output: AttentionOutput) -> Float[Tensor, "B W h L"]:
    return output.weights.unsqueeze(2) if output.heads is None else output.heads


def _joint(choices: list[Choice | None]) -> Choice | None:
    """Return the joint choice of the layers, which draw independently, with the last one's ``probs``."""
    stacked = map_tensors(lambda *values: torch.stack(values), *choices)
    return None if stacked is None else replace(stacked.joint(0), probs=stacked.probs[-1])
