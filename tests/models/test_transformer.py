"""The Transformer decoder against torch's own layers."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from captioner.errors import ModelError
from captioner.language.vocabulary import UNK
from captioner.models import Annotations, MeshedDecoder, TransformerDecoder
from captioner.models.multihead import MultiHead

B, R, T, L, D, V = 2, 3, 5, 6, 7, 9
DIM, HEADS, LAYERS, HIDDEN = 8, 2, 3, 11


def make(annotation_dim=D):
    torch.manual_seed(4)
    attention = partial(MultiHead, heads=HEADS, dim=DIM)
    decoder = TransformerDecoder(
        V, annotation_dim, attention, DIM, LAYERS, HEADS, HIDDEN, dropout=0.2
    )
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    return decoder.double().eval()


def load_attention(theirs, ours, *projections):
    """Give torch's attention our parameters."""
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([p.weight for p in (ours.query, *projections)]))
        theirs.out_proj.weight.copy_(ours.output.weight)
        theirs.in_proj_bias.zero_()
        theirs.out_proj.bias.zero_()


def load_rest(theirs, ours):
    """Give torch's layer our feed-forward network and norms."""
    theirs.linear1.load_state_dict(ours.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(ours.feed_forward[3].state_dict())
    for number, norm in enumerate(ours.norms, 1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())


def torchs_layer(layer):
    theirs = nn.TransformerDecoderLayer(
        DIM, HEADS, HIDDEN, dropout=0.0, norm_first=True, batch_first=True
    ).double()
    inner, cross = layer.self_attention, layer.attention
    load_attention(theirs.self_attn, inner, inner.key_value)
    load_attention(theirs.multihead_attn, cross, cross.key, cross.value)
    load_rest(theirs, layer)
    return theirs


def positions(length):
    """Vaswani et al. 2017, §3.5."""
    table = torch.zeros(length, DIM, dtype=torch.double)
    for position in range(length):
        for i in range(DIM // 2):
            angle = position / 10_000 ** (2 * i / DIM)
            table[position, 2 * i], table[position, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


@pytest.mark.parametrize("annotation_dim", [D, DIM], ids=["projected", "of the same width"])
def test_equals_torchs_decoder(annotation_dim):
    """Logits, and the weights of every layer and head; ``details`` is tested in test_decoders."""
    decoder = make(annotation_dim)
    annotations = Annotations(torch.randn(B, L, annotation_dim, dtype=torch.double), (2, 3))
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    decoded = decoder(annotations, tokens, details=True)
    memory = decoder.project_annotations(annotations.vectors)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    for r in range(R):
        words = decoder.embedding.weight[tokens[:, r]] * math.sqrt(DIM) + positions(T)
        for number, layer in enumerate(decoder.layers):
            theirs = torchs_layer(layer)
            x = theirs.norm1(words)
            x, past = theirs.self_attn(x, x, x, attn_mask=future, average_attn_weights=False)
            query = theirs.norm2(words + x)
            _, heads = theirs.multihead_attn(query, memory, memory, average_attn_weights=False)
            words = theirs(words, memory, tgt_mask=future)
            close(decoded.past_weights[:, r, :, number].transpose(1, 2), past)
            close(decoded.layers[:, r, :, number].transpose(1, 2), heads)
        close(decoded.weights[:, r], heads.mean(1))
        logits = decoder.norm(words) @ decoder.output.weight.T + decoder.output.bias
        close(decoded.logits[:, r], logits)


@torch.no_grad()
def test_meshed_attention_equals_its_equations():
    """The decoder's step against torch's cross-attention to every level, and gates by loops."""
    torch.manual_seed(6)
    decoder = MeshedDecoder(
        V,
        2 * DIM,
        partial(MultiHead, heads=HEADS, dim=DIM),
        levels=2,
        dim=DIM,
        layers=1,
        heads=HEADS,
    )
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.5)
    decoder.double().eval()
    vectors = torch.randn(B, L, 2 * DIM, dtype=torch.double)
    tokens = torch.randint(UNK + 1, V, (B, T))
    decoded = decoder(Annotations(vectors, (2, 3)), tokens, details=True)
    [layer] = decoder.layers
    meshed, cross = layer.attention, layer.attention.attention
    theirs = nn.MultiheadAttention(DIM, HEADS, batch_first=True).double()
    load_attention(theirs, cross, cross.key, cross.value)
    words = decoder.embedding.weight[tokens] * math.sqrt(DIM) + positions(T)
    future = torch.ones(1, T, T, dtype=torch.bool).tril()
    x = words + layer.self_attention(layer.norms[0](words), future)
    query, mixed, maps = layer.norms[1](x), torch.zeros_like(x), []
    for gate, level in zip(meshed.gates, vectors.chunk(2, -1), strict=True):
        context, heads = theirs(query, level, level, average_attn_weights=False)
        maps.append(heads.transpose(1, 2))
        for b in range(B):
            for t in range(T):
                both = gate.weight @ torch.cat([query[b, t], context[b, t]]) + gate.bias
                mixed[b, t] += context[b, t] / (1 + torch.exp(-both))
    x = x + mixed
    x = x + layer.feed_forward(layer.norms[2](x))
    logits = decoder.norm(x) @ decoder.output.weight.T + decoder.output.bias
    close(decoded.logits, logits)
    close(decoded.layers[:, :, 0], (maps[0] + maps[1]) / 2)
    close(decoded.weights, decoded.layers[:, :, 0].mean(2))


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (TransformerDecoder, {"dim": 8, "heads": 3}, "3 heads do not divide a width of 8"),
        (MeshedDecoder, {"levels": 3}, "3 levels do not divide annotations of width 7"),
    ],
)
def test_impossible_sizes_are_refused(make, options, message):
    with pytest.raises(ModelError, match=message):
        make(V, D, **options)
