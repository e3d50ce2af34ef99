"""Attention learns the right positions: in reversed strings, and in grids with one informative cell."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from captioner.language.vocabulary import END, START, UNK
from captioner.models import Annotations, Attention, Hard, LuongDecoder
from captioner.models.registry import arguments, build, find, names
from captioner.search.beam import search
from captioner.search.options import Decoding
from captioner.training.likelihood import Likelihood
from captioner.training.reinforce import Reinforce

FIRST = max(END, START, UNK) + 1  # the id of digit 0
DIGITS, WIDTH, LENGTH = 10, 64, 10
CONTENT_BASED = [score for score in names("score") if score != "Location"]


class Reverser(nn.Module):
    """A bidirectional LSTM reads digits, and a Luong decoder writes them backwards."""

    def __init__(self, score):
        super().__init__()
        self.embedding = nn.Embedding(DIGITS, WIDTH)
        self.reader = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        known = arguments(find("score", score))
        sizes = {"positions": LENGTH, "dim": WIDTH}
        tree = {"class_path": score, "init_args": {k: v for k, v in sizes.items() if k in known}}
        attention = {"class_path": "Attention", "init_args": {"score": tree}}
        options = {"attention": attention, "hidden": WIDTH, "embedding": WIDTH, "dropout": 0.0}
        self.decoder = build(
            "decoder",
            {"class_path": "LuongDecoder", "init_args": options},
            vocab_size=FIRST + DIGITS,
            annotation_dim=WIDTH,
        )

    def read(self, digits):
        """One annotation per digit: its embedding plus its surroundings."""
        embedded = self.embedding(digits)
        return Annotations(embedded + self.reader(embedded)[0], (1, LENGTH))


def strings(count, generator):
    """Draw digits (B, T) and the ids ``<start> reversed digits <end>`` (B, T + 2)."""
    digits = torch.randint(DIGITS, (count, LENGTH), generator=generator)
    start, end = torch.full((count, 1), START), torch.full((count, 1), END)
    return digits, torch.cat([start, digits.flip(1) + FIRST, end], 1)


@pytest.mark.slow
@pytest.mark.parametrize("score", CONTENT_BASED)
def test_ten_digits_are_written_backwards(score):
    torch.manual_seed(1)
    model, generator = Reverser(score), torch.Generator().manual_seed(1)
    objective = Likelihood(doubly_stochastic=0.0, label_smoothing=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    recent_loss = 1.0
    for _ in range(3000):
        digits, ids = strings(128, generator)
        decoded = model.decoder(model.read(digits), ids[:, None, :-1])
        loss = objective(decoded, ids[:, None, 1:]).total
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        recent_loss = 0.98 * recent_loss + 0.02 * float(loss.detach())
        if recent_loss < 2e-3:
            break
    model.eval()
    with torch.inference_mode():
        digits, ids = strings(1000, generator)
        found = search(model.decoder, model.read(digits), Decoding(1, max_length=LENGTH + 5))
        weights = model.decoder(model.read(digits), ids[:, :-1]).weights[:, :LENGTH]
    exact = [
        best[0].tokens == target[1:-1].tolist() for best, target in zip(found, ids, strict=True)
    ]
    assert sum(exact) >= 990
    # The map shows the anti-diagonal.
    correct = weights.argmax(-1) == torch.arange(LENGTH - 1, -1, -1)
    assert correct.float().mean() >= 0.95


def scenes(count, cells=9, kinds=6, width=12):
    """Return images in which one of nine cells determines the word; the others are noise."""
    kind, cell = torch.randint(kinds, (count,)), torch.randint(cells, (count,))
    vectors = torch.randn(count, cells, width) / 2
    vectors[torch.arange(count), cell] = 3.0 * F.one_hot(kind, width).index_fill(
        1, torch.tensor([width - 1]), 1
    )
    return Annotations(vectors, (3, 3)), kind + FIRST, cell


@pytest.mark.slow
def test_hard_attention_learns_where_to_look():
    torch.manual_seed(7)
    attention = partial(Attention, distribution=Hard)
    sizes = {"hidden": 32, "embedding": 16, "dropout": 0.0}
    model = LuongDecoder(FIRST + 6, 12, attention=attention, **sizes)
    reinforce = Reinforce(4, "leave_one_out", entropy_weight=0.02, doubly_stochastic=0.0)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(400):
        images, words, _ = scenes(64)
        decoded = model.train()(images, torch.full((64, 4, 1), START))
        loss = reinforce.train()(decoded, words.view(-1, 1, 1).expand(-1, 4, -1))
        optimizer.zero_grad()
        loss.total.backward()
        optimizer.step()
    images, words, cells = scenes(1000)
    decoded = model.eval()(images, torch.full((1000, 1), START))
    assert (decoded.weights[:, 0].argmax(-1) == cells).float().mean() >= 0.95
    assert (decoded.logits[:, 0].argmax(-1) == words).float().mean() >= 0.95
