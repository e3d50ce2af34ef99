"""The Transformer decoder against torch's own layers."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from captioner.errors import ModelError
from captioner.models import Annotations, TransformerDecoder
from captioner.models.multihead import MultiHead
from captioner.text import UNK

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


def torchs_layer(layer):
    """torch's decoder layer with our parameters."""
    theirs = nn.TransformerDecoderLayer(
        DIM, HEADS, HIDDEN, dropout=0.0, norm_first=True, batch_first=True
    ).double()
    inner, cross = layer.self_attention, layer.attention
    key_value = torch.cat([cross.key.weight, cross.value.weight])
    with torch.no_grad():
        for attention, ours, projection in (
            (theirs.self_attn, inner, inner.key_value.weight),
            (theirs.multihead_attn, cross, key_value),
        ):
            attention.in_proj_weight.copy_(torch.cat([ours.query.weight, projection]))
            attention.out_proj.weight.copy_(ours.output.weight)
            attention.in_proj_bias.zero_()
            attention.out_proj.bias.zero_()
    theirs.linear1.load_state_dict(layer.feed_forward[0].state_dict())
    theirs.linear2.load_state_dict(layer.feed_forward[3].state_dict())
    for number in range(3):
        getattr(theirs, f"norm{number + 1}").load_state_dict(layer.norms[number].state_dict())
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
    """Logits, and the weights of every layer and head; ``detail`` is tested in test_decoders."""
    decoder = make(annotation_dim)
    annotations = Annotations(torch.randn(B, L, annotation_dim, dtype=torch.double), (2, 3))
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    decoded = decoder(annotations, tokens, "all")
    memory = decoder.memory(annotations.vectors)
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


def test_keys_and_values_are_computed_once_a_word():
    """A step projects one word, and the annotations are projected once."""
    decoder = make()
    rows = []
    for layer in decoder.layers:
        for part in (layer.self_attention.key_value, layer.attention.key):
            part.register_forward_hook(lambda module, given, _: rows.append(given[0].shape[-2]))
    state = decoder.init_state(Annotations(torch.randn(B, L, D, dtype=torch.double), (2, 3)))
    assert rows == [L] * LAYERS
    rows.clear()
    for _ in range(4):
        _, _, state = decoder.step(torch.randint(V, (B,)), state)
    assert rows == [B] * 4 * LAYERS
    assert state.words == 4


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 9, "heads": 3}, "even width"),
        ({"dim": 8, "heads": 3}, "3 heads do not divide a width of 8"),
        ({"layers": 0}, "1 layer or more"),
    ],
)
def test_impossible_sizes_are_refused(options, message):
    with pytest.raises(ModelError, match=message):
        TransformerDecoder(V, D, **options)
