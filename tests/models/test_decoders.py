"""Contract tests of every decoder in the registry, with every distribution."""

import pytest
import torch

from captioner.language.vocabulary import END, PAD, UNK
from captioner.models import Annotations, LocalM, recurrent, transformer
from captioner.models.registry import arguments, find, names
from captioner.search.beam import search
from captioner.search.options import Decoding
from random_decoders import random_decoder
from tests.models.test_attention import DISTRIBUTIONS, tree
from tests.models.test_transformer import close

B, R, T, D, V = 2, 3, 5, 6, 9
ROWS, COLUMNS = 2, 3
L = ROWS * COLUMNS
MASK = torch.tensor([[1, 1, 0, 1, 1, 1], [0, 1, 1, 0, 0, 1]], dtype=torch.bool)
SMALL = {"hidden": 6, "embedding": 4, "dropout": 0.3, "dim": 8, "layers": 2, "heads": 2}
SMALL |= {"feed_forward": 5, "levels": 2}


def variants(name: str) -> list[dict]:
    """The defaults of a decoder, and each of its switches flipped."""
    parameters = arguments(find("decoder", name)).values()
    return [{}, *({p.name: not p.default} for p in parameters if isinstance(p.default, bool))]


DECODERS = [(name, switches) for name in names("decoder") for switches in variants(name)]
ATTENTIONS = [("Attention", distribution) for distribution in DISTRIBUTIONS]
ATTENTIONS += [("MultiHead", "Soft"), ("MultiHead", "Hard")]
LOCAL = [name for name in DISTRIBUTIONS if issubclass(find("distribution", name), LocalM.__base__)]
# Every decoder and switch with soft attention, and every decoder with every attention.
PAIRS = [(*decoder, "Attention", "Soft") for decoder in DECODERS]
PAIRS += [(n, {}, *a) for n in names("decoder") for a in ATTENTIONS if a != ("Attention", "Soft")]
every_name = pytest.mark.parametrize("name", names("decoder"))
every_decoder = pytest.mark.parametrize(("name", "switches"), DECODERS)
every_pair = pytest.mark.parametrize(("name", "switches", "attention", "distribution"), PAIRS)


def make(name, switches=None, attention="Attention", distribution="Soft"):
    known = arguments(find("decoder", name))
    small = {option: value for option, value in SMALL.items() if option in known}
    attention = tree(attention, distribution=tree(distribution))
    return random_decoder(name, {**small, **(switches or {}), "attention": attention}, V, D)


def images(mask=MASK):
    generator = torch.Generator().manual_seed(5)
    vectors = torch.randn(B, L, D, generator=generator, dtype=torch.double)
    return Annotations(vectors, (ROWS, COLUMNS), mask)


def captions():
    return torch.randint(UNK, V, (B, R, T), generator=torch.Generator().manual_seed(6))


@every_pair
def test_stepping_equals_teacher_forcing(name, switches, attention, distribution):
    decoder = make(name, switches, attention, distribution)
    for tokens, rows in ((captions(), R), (captions()[:, 0], 1)):  # (B, R, T) and (B, T)
        decoded, state = decoder(images(), tokens), decoder.init_state(images(), rows)
        for t, word in enumerate(tokens.unbind(-1)):
            logits, weights, state = decoder.step(word, state)
            close(decoded.logits[..., t, :], logits)
            close(decoded.weights[..., t, :], weights)


@every_pair
def test_details_only_add_weights(name, switches, attention, distribution):
    """The weights shown are the mean over the heads of the last layer."""
    decoder = make(name, switches, attention, distribution)
    shown, everything = (decoder(images(), captions(), details) for details in (False, True))
    close(everything.logits, shown.logits)
    close(everything.weights, shown.weights)
    assert shown.layers is None
    assert shown.past_weights is None
    if everything.layers is not None:
        assert everything.layers.shape[:3] == (B, R, T)
        close(everything.layers[..., -1, :, :].mean(-2), everything.weights)


@pytest.mark.parametrize("distribution", LOCAL)
@every_name
def test_the_window_of_local_attention_lies_around_its_centre(name, distribution):
    decoder = make(name, distribution=distribution)
    decoded = decoder(images(None), captions())
    assert decoder.window == 1
    row, column = decoded.centre.unbind(-1)
    assert row.shape == (B, R, T)
    assert ((row >= 0) & (row <= ROWS)).all()
    assert ((column >= 0) & (column <= COLUMNS)).all()
    cells = torch.arange(L)
    if distribution == "LocalP2D":
        far = ((cells // COLUMNS + 0.5 - row[..., None]).abs() > 1) | (
            (cells % COLUMNS + 0.5 - column[..., None]).abs() > 1
        )
    else:
        position = (row - 0.5) * COLUMNS + column - 0.5  # at most half a cell beyond the last
        far = (cells - position[..., None]).abs() > 1.5
    if distribution == "LocalM":  # word t attends to cell t
        close(position, torch.arange(T).to(position).expand(B, R, T))
    assert far.any()
    assert (decoded.weights[far] == 0).all()


@pytest.mark.parametrize(
    ("attention", "distribution", "padded", "sizes"),  # LocalM depends on the number of the word
    [
        ("Attention", "Soft", True, [[5, 4, 2], [3, 3, 1]]),
        ("Attention", "LocalM", False, [[2, 5, 1], [1, 3, 4]]),
        ("MultiHead", "LocalM", False, [[5, 4, 2], [3, 3, 1]]),
    ],
)
@every_decoder
def test_padding_changes_nothing(
    name, switches, attention, distribution, padded, sizes, monkeypatch
):
    """Logits, weights and gradients are those of every caption decoded alone and unpadded."""
    if not padded:  # else all steps of these few captions are valid
        for module in (recurrent, transformer):
            monkeypatch.setattr(module, "pad_to_multiple", lambda valid_mask: valid_mask)
    decoder, tokens = make(name, switches, attention, distribution), captions()
    together = tokens.clone()
    for b in range(B):
        for r in range(R):
            together[b, r, sizes[b][r] :] = PAD
            together[b, r, sizes[b][r] : sizes[b][r] + 1] = END
    decoded = decoder(images(), together)
    total = alone = 0.0
    for b in range(B):
        for r in range(R):
            size = sizes[b][r]
            one = decoder(images().of(b), tokens[b, r, :size].unsqueeze(0))
            close(decoded.logits[b, r, :size], one.logits[0])
            close(decoded.weights[b, r, :size], one.weights[0])
            total = total + decoded.logits[b, r, :size].log_softmax(-1)[:, 4].sum()
            alone = alone + one.logits[0].log_softmax(-1)[:, 4].sum()
    parameters = list(decoder.parameters())
    gradients = (torch.autograd.grad(x, parameters, allow_unused=True) for x in (alone, total))
    for expected, found in zip(*gradients, strict=True):
        assert (found is None) == (expected is None)
        if found is not None:
            close(found, expected)


@every_decoder
def test_empty_captions_are_decoded(name, switches):
    decoded = make(name, switches)(images(), torch.full((B, R, 6), PAD), details=True)
    assert decoded.logits.shape == (B, R, 6, V)
    assert decoded.weights.shape == (B, R, 6, L)
    decoded.packed_logits.sum().backward()


@every_decoder
def test_reorder_takes_the_memory_of_the_chosen_rows(name, switches):
    decoder, tokens = make(name, switches), captions()
    state = decoder.init_state(images(), rows=R)
    for t in range(3):
        _, _, state = decoder.step(tokens[:, :, t], state)
    rows = torch.tensor([[2, 0, 0, 1], [1, 1, 2, 0]])
    word = torch.tensor([[5, 6, 7, 8], [8, 7, 6, 5]])
    logits, weights, _ = decoder.step(word, state.reorder(rows))
    history = tokens[:, :, :3].gather(1, rows.unsqueeze(-1).expand(-1, -1, 3))
    forced = decoder(images(), torch.cat([history, word.unsqueeze(-1)], -1))
    close(logits, forced.logits[..., -1, :])
    close(weights, forced.weights[..., -1, :])


@pytest.mark.parametrize("distribution", [d for d in DISTRIBUTIONS if d != "LocalP2D"])
@every_name
def test_masked_regions_do_not_count(name, distribution):
    """LocalP2D reads the grid, which another number of regions changes."""
    decoder, tokens = make(name, distribution=distribution), captions()
    vectors = images().vectors
    hidden = torch.where(MASK.unsqueeze(-1), vectors, 1e3)
    decoded = decoder(Annotations(hidden, (ROWS, COLUMNS), MASK), tokens)
    assert (decoded.weights[~MASK[:, None, None].expand_as(decoded.weights)] == 0).all()
    for b in range(B):
        rest = vectors[b : b + 1, MASK[b]]
        without = decoder(Annotations(rest, (1, rest.shape[1])), tokens[b : b + 1])
        close(decoded.logits[b], without.logits[0])
        close(decoded.weights[b][..., MASK[b]], without.weights[0])


@every_name
def test_dropout_is_for_training_only(name):
    decoder = make(name)
    for training in (False, True):
        decoder.train(training)
        one, two = (decoder(images(), captions()).logits for _ in range(2))
        assert torch.equal(one, two) == (not training)


@every_name
def test_a_new_decoder_predicts_all_words_alike(name):
    torch.manual_seed(7)
    fresh = find("decoder", name)(1000, D).eval()
    log_probs = fresh(Annotations(torch.randn(B, L, D), (2, 3)), captions()).logits.log_softmax(-1)
    assert log_probs.mean().item() == pytest.approx(-6.9, abs=0.3)


@pytest.mark.parametrize(
    ("name", "switches", "attention", "distribution"),
    [pair for pair in PAIRS if pair[0] == "LSTMDecoder" or pair[3] == "Soft"],
)
def test_finished_images_leave_a_search(name, switches, attention, distribution, monkeypatch):
    """Every image is captioned as if it were alone."""
    decoder = make(name, switches, attention, distribution)
    images, decoding = 8, Decoding(3, 12)
    generator = torch.Generator().manual_seed(5)
    vectors = 2 * torch.randn(images, L, D, generator=generator, dtype=torch.double)
    annotations = Annotations(vectors, (ROWS, COLUMNS), MASK.repeat(images // B, 1))
    sizes = []
    step = type(decoder).step
    monkeypatch.setattr(type(decoder), "step", lambda *of: sizes.append(len(of[1])) or step(*of))
    for _ in range(8):  # with a larger bias of the end, captions end sooner
        sizes.clear()
        together = search(decoder, annotations, decoding)
        if sizes[-1] < images:
            break
        with torch.no_grad():
            decoder.output.bias[END] += 0.5
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == images > sizes[-1]
    for b, found in enumerate(together):
        [alone] = search(decoder, annotations.of(b), decoding)
        for h, other in zip(found, alone, strict=True):
            assert h.tokens == other.tokens
            assert h.log_probs == pytest.approx(other.log_probs, abs=1e-5)
            torch.testing.assert_close(h.weights, other.weights, rtol=0, atol=1e-6)
