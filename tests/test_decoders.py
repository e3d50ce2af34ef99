"""What every decoder promises, with every attention; a newly registered one is tested by existing."""

import inspect
from dataclasses import replace

import pytest
import torch

from captioner import models
from captioner.decoding import Decoding, search
from captioner.models import Annotations, packing
from captioner.models import attention as laws
from captioner.models.registry import build, names
from captioner.text import END, PAD, UNK
from captioner.training.said import said_words
from test_attention import LAWS, tree

B, R, T, D, V = 2, 3, 5, 6, 9
ROWS, COLUMNS = 2, 3
L = ROWS * COLUMNS
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)
SMALL = {
    "hidden": 6,
    "embedding": 4,
    "dropout": 0.3,
    "dim": 8,
    "layers": 2,
    "heads": 2,
    "feed_forward": 5,
}


def variants(name: str) -> list[dict]:
    """A decoder with each of its switches on and off."""
    parameters = inspect.signature(getattr(models, name)).parameters
    switches = [p.name for p in parameters.values() if isinstance(p.default, bool)]
    return [{}, *({switch: False} for switch in switches), *({switch: True} for switch in switches)]


DECODERS = [(name, switches) for name in names("decoder") for switches in variants(name)]
ATTENTIONS = [("Attention", law) for law in LAWS] + [("MultiHead", "Soft"), ("MultiHead", "Hard")]
LOCAL = [law for law in LAWS if issubclass(getattr(laws, law), laws.LocalM.__base__)]
every_decoder = pytest.mark.parametrize(("name", "switches"), DECODERS)
every_attention = pytest.mark.parametrize(("attention", "law"), ATTENTIONS)


def make(name, switches=None, attention="Attention", law="Soft"):
    """In eval mode and double precision, parameters large enough to matter."""
    torch.manual_seed(4)
    described = tree(attention, distribution=tree(law))
    known = inspect.signature(getattr(models, name)).parameters
    small = {option: value for option, value in SMALL.items() if option in known}
    options = {**small, **(switches or {}), "attention": described}
    decoder = build(
        "decoder", {"class_path": name, "init_args": options}, vocab_size=V, annotation_dim=D
    )
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.7)
    return decoder.double().eval()


def seen(mask=MASK):
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(B, L, D, generator=generator, dtype=torch.double)
    return Annotations(vectors, (ROWS, COLUMNS), mask)


def captions():
    return torch.randint(UNK, V, (B, R, T), generator=torch.Generator().manual_seed(6))


def close(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-10)


def stepped(decoder, annotations, tokens):
    """Word by word, as a search does it: logits (B, *R, T, V) and weights (B, *R, T, L)."""
    state = decoder.start(annotations)
    if tokens.ndim == 3:
        state = state.select(torch.zeros(tokens.shape[:2], dtype=torch.long))
    steps = []
    for word in tokens.unbind(-1):
        logits, weights, state = decoder.step(word, state)
        steps.append((logits, weights))
    return [torch.stack(parts, -2) for parts in zip(*steps, strict=True)]


@pytest.mark.parametrize("tokens", [captions()[:, 0], captions()], ids=["B T", "B R T"])
@every_attention
@every_decoder
def test_stepping_equals_teacher_forcing(name, switches, attention, law, tokens):
    decoder = make(name, switches, attention, law)
    decoded = decoder(seen(), tokens)
    logits, weights = stepped(decoder, seen(), tokens)
    assert logits.shape == (*tokens.shape, V)
    close(decoded.logits, logits)
    close(decoded.weights, weights)


@every_attention
@every_decoder
def test_detail_changes_nothing_but_how_much_is_said(name, switches, attention, law):
    """With all there is to say: every layer and head, the mean over the last layer's is shown."""
    decoder = make(name, switches, attention, law)
    told = {detail: decoder(seen(), captions(), detail) for detail in ("none", "shown", "all")}
    for detail in ("none", "all"):
        close(told[detail].logits, told["shown"].logits)
    everything = told["all"]
    close(everything.weights, told["shown"].weights)
    assert told["shown"].layers is None
    assert told["shown"].past is None
    if everything.layers is not None:
        assert everything.layers.shape[:3] == (B, R, T)
        close(everything.layers[..., -1, :, :].mean(-2), everything.weights)


@every_decoder
def test_earlier_words_count_and_no_later_one(name, switches):
    past = make(name, switches)(seen(), captions(), "all").past
    looks_back = name == "TransformerDecoder" or (switches or {}).get("intra", False)
    assert (past is not None) == looks_back
    if past is None:
        return
    assert past.shape[:3] == (B, R, T)
    assert past.shape[-1] == T
    assert (past >= 0).all()
    sums = past.sum(-1)
    if name != "TransformerDecoder":  # an LSTM looks at what came before; at first, nothing did
        assert (sums[:, :, 0] == 0).all()
        sums = sums[:, :, 1:]
    close(sums, torch.ones_like(sums))
    for t in range(T):
        assert (past[:, :, t, :, :, t + 1 :] == 0).all()


@pytest.mark.parametrize("law", LOCAL)
@every_decoder
def test_the_centre_of_local_attention_lies_on_the_grid(name, switches, law):
    """And is the middle of what is looked at: nothing beyond the window around it has weight."""
    decoder = make(name, switches, law=law)
    decoded = decoder(seen(None), captions())
    assert decoder.window == 1
    assert decoded.centre.shape == (B, R, T, 2)
    row, column = decoded.centre.unbind(-1)
    assert ((row >= 0) & (row <= ROWS)).all()
    assert ((column >= 0) & (column <= COLUMNS)).all()
    if law == "LocalP2D":
        cells = torch.arange(L)
        far = ((cells // COLUMNS + 0.5 - row[..., None]).abs() > 1) | (
            (cells % COLUMNS + 0.5 - column[..., None]).abs() > 1
        )
    else:
        place = (row - 0.5) * COLUMNS + column - 0.5  # at most half a cell from the last
        far = (torch.arange(L) - place[..., None]).abs() > 1.5
    if law == "LocalM":  # which looks at cell t for word t, from 0
        close(place, torch.arange(T).to(place).expand(B, R, T))
    assert far.any()
    assert (decoded.weights[far] == 0).all()


@every_decoder
def test_every_caption_of_a_picture_is_decoded_as_if_alone(name, switches):
    decoder, annotations, tokens = make(name, switches), seen(), captions()
    together = decoder(annotations, tokens)
    for b in range(B):
        picture = Annotations(annotations.vectors[b : b + 1], (ROWS, COLUMNS), MASK[b : b + 1])
        for r in range(R):
            alone = decoder(picture, tokens[b, r].unsqueeze(0))
            close(together.logits[b, r], alone.logits[0])
            close(together.weights[b, r], alone.weights[0])


@pytest.mark.parametrize(
    ("attention", "law", "filled"),  # LocalM asks which word it is
    [("Attention", "Soft", True), ("Attention", "LocalM", False), ("MultiHead", "LocalM", False)],
)
@pytest.mark.parametrize("longest_first", [True, False])
@every_decoder
def test_captions_that_have_ended_change_nothing(
    name, switches, attention, law, longest_first, filled, monkeypatch
):
    """What is said to the end, and its gradient, are those of each caption alone and unpadded."""
    if not filled:  # all steps of these few captions would be there
        monkeypatch.setattr(packing, "missing_rows", lambda _: 0)
    decoder, annotations, tokens = make(name, switches, attention, law), seen(), captions()
    sizes = [[5, 4, 2], [3, 3, 1]] if longest_first else [[2, 5, 1], [1, 3, 4]]
    together = tokens.clone()
    for b in range(B):
        for r in range(R):
            together[b, r, sizes[b][r] :] = PAD
            together[b, r, sizes[b][r] : sizes[b][r] + 1] = END
    decoded = decoder(annotations, together)
    total = alone = 0.0
    for b in range(B):
        for r in range(R):
            size = sizes[b][r]
            one = decoder(annotations.of(b), tokens[b, r, :size].unsqueeze(0))
            close(decoded.logits[b, r, :size], one.logits[0])
            close(decoded.weights[b, r, :size], one.weights[0])
            total = total + decoded.logits[b, r, :size].log_softmax(-1)[:, 4].sum()
            alone = alone + one.logits[0].log_softmax(-1)[:, 4].sum()
    parameters = [p for p in decoder.parameters() if p.requires_grad]
    for expected, found in zip(
        torch.autograd.grad(alone, parameters, allow_unused=True),
        torch.autograd.grad(total, parameters, allow_unused=True),
        strict=True,
    ):
        assert (found is None) == (expected is None)
        if found is not None:
            close(found, expected)


@pytest.mark.parametrize("attention", ["Attention", "MultiHead"])
@every_decoder
def test_captions_without_words_say_nothing(name, switches, attention):
    decoder, annotations = make(name, switches, attention), seen()
    decoded = decoder(annotations, torch.full((B, R, 6), PAD), detail="all")
    assert decoded.logits.shape == (B, R, 6, V)
    assert decoded.weights.shape == (B, R, 6, L)
    decoded.said.sum().backward()


@pytest.mark.parametrize("words", [1, 3, 16, 17, 29])
@every_decoder
def test_the_vocabulary_is_projected_for_a_round_number_of_words(name, switches, words):
    """All that exist, and as many others as that takes, or all there are; nothing learns from those."""
    decoder, annotations = make(name, switches), seen()
    tokens = torch.full((B, R, 6), PAD)  # B · R · 6 = 36 steps
    tokens.flatten()[:words] = UNK + 1
    decoded = decoder(annotations, tokens)
    assert decoded.there is not None
    count = int(decoded.there.sum())
    assert count == len(decoded.said) == min(-(-words // 16) * 16, tokens.numel())
    assert decoded.there[tokens != PAD].all()
    losses = [said_words(decoded, tokens).exact.sum()]
    everywhere = replace(decoded, said=decoded.logits, there=None)
    losses.append(said_words(everywhere, tokens).exact.sum())
    close(*losses)
    own, other = (torch.autograd.grad(loss, decoded.said, retain_graph=True)[0] for loss in losses)
    close(own, other)
    assert int(own.any(-1).sum()) == words


@pytest.mark.parametrize("changed", range(1, T))
@every_decoder
def test_a_later_word_changes_nothing_earlier(name, switches, changed):
    decoder, tokens = make(name, switches), captions()
    other = tokens.clone()
    other[..., changed] = UNK + (other[..., changed] - UNK + 1) % (V - UNK)
    one, two = decoder(seen(), tokens), decoder(seen(), other)
    close(one.logits[..., :changed, :], two.logits[..., :changed, :])
    close(one.weights[..., :changed, :], two.weights[..., :changed, :])
    moved = (one.logits - two.logits).abs().amax(-1)
    assert (moved[..., changed:] > 1e-6).all()  # and everything later


@every_decoder
def test_select_takes_the_memory_of_the_chosen_rows(name, switches):
    decoder, tokens = make(name, switches), captions()
    state = decoder.start(seen()).select(torch.zeros(B, R, dtype=torch.long))
    for t in range(3):
        _, _, state = decoder.step(tokens[:, :, t], state)
    rows = torch.tensor([[2, 0, 0, 1], [1, 1, 2, 0]])
    word = torch.tensor([[5, 6, 7, 8], [8, 7, 6, 5]])
    logits, weights, _ = decoder.step(word, state.select(rows))
    history = tokens[:, :, :3].gather(1, rows.unsqueeze(-1).expand(-1, -1, 3))
    forced = decoder(seen(), torch.cat([history, word.unsqueeze(-1)], -1))
    close(logits, forced.logits[..., -1, :])
    close(weights, forced.weights[..., -1, :])


@pytest.mark.parametrize("law", [law for law in LAWS if law != "LocalP2D"])  # it knows the grid
@every_decoder
def test_what_is_masked_might_as_well_not_exist(name, switches, law):
    decoder, tokens = make(name, switches, law=law), captions()
    vectors = seen().vectors
    hidden = torch.where(MASK.unsqueeze(-1), vectors, 1e3)
    decoded = decoder(Annotations(hidden, (ROWS, COLUMNS), MASK), tokens)
    assert (decoded.weights[~MASK[:, None, None].expand_as(decoded.weights)] == 0).all()
    for b in range(B):
        rest = vectors[b : b + 1, MASK[b]]
        without = decoder(Annotations(rest, (1, rest.shape[1])), tokens[b : b + 1])
        close(decoded.logits[b], without.logits[0])
        close(decoded.weights[b][..., MASK[b]], without.weights[0])


@every_attention
@every_decoder
def test_gradient_reaches_every_parameter(name, switches, attention, law):
    decoder = make(name, switches, attention, law)
    for parameter in decoder.parameters():
        torch.nn.init.normal_(parameter, std=0.1)  # no distribution is so sharp that nothing flows
    decoded = decoder(seen(), captions())
    loss = decoded.logits.log_softmax(-1)[..., 0].sum()
    if decoded.log_prob is not None:
        loss = loss + decoded.log_prob.sum()
    loss.backward()
    for parameter_name, parameter in decoder.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.any(), parameter_name


@every_decoder
def test_dropout_is_for_training_only(name, switches):
    decoder, annotations, tokens = make(name, switches), seen(), captions()
    one, two = (decoder(annotations, tokens).logits for _ in range(2))
    assert torch.equal(one, two)
    decoder.train()
    one, two = (decoder(annotations, tokens).logits for _ in range(2))
    assert not torch.equal(one, two)


@pytest.mark.parametrize("name", names("decoder"))
def test_starts_from_even_odds(name):
    torch.manual_seed(7)
    fresh = getattr(models, name)(1000, D).eval()
    log_probs = fresh(Annotations(torch.randn(B, L, D), (2, 3)), captions()).logits.log_softmax(-1)
    assert log_probs.mean().item() == pytest.approx(-6.9, abs=0.3)


@pytest.mark.parametrize("beam_size", [1, 3])
@every_decoder
def test_pictures_that_are_done_leave_a_search(name, switches, beam_size, monkeypatch):
    """And are captioned, like those that stay, as if each were alone."""
    check_a_search(make(name, switches), beam_size, monkeypatch)


@every_attention
def test_pictures_leave_a_search_with_every_attention(attention, law, monkeypatch):
    check_a_search(make("LSTMDecoder", None, attention, law), 2, monkeypatch)


def check_a_search(decoder, beam_size, monkeypatch):
    pictures, decoding = 8, Decoding(beam_size, 12)
    generator = torch.Generator().manual_seed(5)
    vectors = 2 * torch.randn(pictures, L, D, generator=generator, dtype=torch.double)
    annotations = Annotations(vectors, (ROWS, COLUMNS), MASK.repeat(pictures // B, 1))
    sizes = []
    step = type(decoder).step
    monkeypatch.setattr(type(decoder), "step", lambda *of: sizes.append(len(of[1])) or step(*of))
    for _ in range(8):  # the readier it is to end, the sooner
        sizes.clear()
        together = search(decoder, annotations, decoding)
        if sizes[-1] < pictures:
            break
        with torch.no_grad():
            decoder.output.bias[END] += 0.5
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == pictures > sizes[-1]
    for b, found in enumerate(together):
        [alone] = search(decoder, annotations.of(b), decoding)
        assert [h.tokens for h in found] == [h.tokens for h in alone]
        for h, other in zip(found, alone, strict=True):
            assert h.log_probs == pytest.approx(other.log_probs, abs=1e-5)
            torch.testing.assert_close(h.weights, other.weights, rtol=0, atol=1e-6)
