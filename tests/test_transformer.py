"""The Transformer decoder against torch's own layers."""

import math
from functools import partial

import pytest
import torch
from torch import nn

from captioner.errors import ModelError
from captioner.models import Annotations, TransformerDecoder
from captioner.models.attention import MultiHead, SelfAttention
from captioner.models.attention.self_attention import causal
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
    """torch's own decoder layer with the parameters of ours."""
    own = nn.TransformerDecoderLayer(
        DIM, HEADS, HIDDEN, dropout=0.0, norm_first=True, batch_first=True
    ).double()
    inner, cross = layer.self_attention, layer.attention
    with torch.no_grad():
        for theirs, query, key_value, output in (
            (own.self_attn, inner.query.weight, inner.key_value.weight, inner.output.weight),
            (
                own.multihead_attn,
                cross.query.weight,
                torch.cat([cross.key.weight, cross.value.weight]),
                cross.output.weight,
            ),
        ):
            theirs.in_proj_weight.copy_(torch.cat([query, key_value]))
            theirs.out_proj.weight.copy_(output)
            theirs.in_proj_bias.zero_()
            theirs.out_proj.bias.zero_()
    own.linear1.load_state_dict(layer.feed_forward[0].state_dict())
    own.linear2.load_state_dict(layer.feed_forward[3].state_dict())
    for number in range(3):
        getattr(own, f"norm{number + 1}").load_state_dict(layer.norms[number].state_dict())
    return own


def positions(length):
    """Vaswani et al. 2017, §3.5, by the letter."""
    table = torch.zeros(length, DIM, dtype=torch.double)
    for place in range(length):
        for i in range(DIM // 2):
            angle = place / 10_000 ** (2 * i / DIM)
            table[place, 2 * i], table[place, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return table


@pytest.mark.parametrize("annotation_dim", [D, DIM], ids=["projected", "of the same width"])
@pytest.mark.parametrize("detail", ["none", "shown", "all"])
def test_equals_torchs_decoder(detail, annotation_dim):
    decoder = make(annotation_dim)
    annotations = Annotations(torch.randn(B, L, annotation_dim, dtype=torch.double), (2, 3))
    tokens = torch.randint(UNK + 1, V, (B, R, T))
    decoded = decoder(annotations, tokens, detail)
    memory = annotations.vectors
    if annotation_dim != DIM:
        memory = memory @ decoder.memory.weight.T
    for r in range(R):
        words = decoder.embedding.weight[tokens[:, r]] * math.sqrt(DIM) + positions(T)
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        for number, layer in enumerate(decoder.layers):
            own = torchs_layer(layer)
            if detail == "all":
                normed = own.norm1(words)
                _, looked = own.self_attn(
                    normed, normed, normed, attn_mask=future, average_attn_weights=False
                )  # (B, h, T, T)
                torch.testing.assert_close(
                    decoded.past[:, r, :, number].transpose(1, 2), looked, rtol=0, atol=1e-10
                )
            if detail == "all" or (detail == "shown" and number == LAYERS - 1):
                kept = []
                handle = own.multihead_attn.register_forward_pre_hook(
                    lambda module, args, kept=kept: kept.append(args[0])
                )
                after = own(words, memory, tgt_mask=future)
                handle.remove()
                _, heads = own.multihead_attn(kept[0], memory, memory, average_attn_weights=False)
                if detail == "all":
                    torch.testing.assert_close(
                        decoded.layers[:, r, :, number].transpose(1, 2), heads, rtol=0, atol=1e-10
                    )
                if number == LAYERS - 1:
                    torch.testing.assert_close(
                        decoded.weights[:, r], heads.mean(1), rtol=0, atol=1e-10
                    )
                words = after
            else:
                words = own(words, memory, tgt_mask=future)
        logits = decoder.norm(words) @ decoder.output.weight.T + decoder.output.bias
        torch.testing.assert_close(decoded.logits[:, r], logits, rtol=0, atol=1e-10)
    assert (decoded.weights is None) == (detail == "none")
    assert (decoded.layers is None) == (decoded.past is None) == (detail != "all")


@torch.no_grad()
def test_a_search_makes_no_weights_that_nobody_asks_for(monkeypatch):
    """The kernel that makes none is called twice a layer; with detail, only where nobody looks."""
    decoder = make()
    calls = []
    kernel = nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        nn.functional,
        "scaled_dot_product_attention",
        lambda *args, **options: calls.append(1) or kernel(*args, **options),
    )
    annotations = Annotations(torch.randn(B, L, D, dtype=torch.double), (2, 3))
    counts = {}
    for detail in ("none", "shown", "all"):
        calls.clear()
        decoder(annotations, torch.randint(UNK + 1, V, (B, R, T)), detail)
        counts[detail] = len(calls)
    assert counts == {"none": 2 * LAYERS, "shown": 2 * LAYERS - 1, "all": 0}


def test_keys_and_values_are_computed_once_a_word():
    """Generating, a step projects one word, and the annotations never again."""
    decoder = make()
    rows = []
    for layer in decoder.layers:
        for part in (layer.self_attention.key_value, layer.attention.key):
            part.register_forward_hook(lambda module, given, _: rows.append(given[0].shape[-2]))
    state = decoder.start(Annotations(torch.randn(B, L, D, dtype=torch.double), (2, 3)))
    assert rows == [L] * LAYERS
    rows.clear()
    for _ in range(4):
        _, _, state = decoder.step(torch.randint(V, (B,)), state)
    assert rows == [B] * 4 * LAYERS
    assert state.words == 4


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("head_window", [0, 1])
def test_self_attention_with_a_cache_equals_all_at_once(head_window, need_weights):
    torch.manual_seed(5)
    attention = SelfAttention(DIM, HEADS, head_window).double()
    vectors = torch.randn(B, T, DIM, dtype=torch.double)
    together, looked, _ = attention(vectors, causal(T), need_weights=need_weights)
    past = None
    for t in range(T):
        found, weights, past = attention(vectors[:, t : t + 1], None, past, need_weights)
        torch.testing.assert_close(found[:, 0], together[:, t], rtol=0, atol=1e-10)
        if need_weights:
            torch.testing.assert_close(weights[:, 0], looked[:, t, :, : t + 1], rtol=0, atol=1e-10)


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
