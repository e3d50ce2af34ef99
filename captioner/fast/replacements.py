"""The table of faster versions: plain class → subclass with the same parameters."""

from torch import nn

from captioner import models
from captioner.fast import energies, folding, linear, recurrence

REPLACEMENTS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: linear.Linear,
    models.CNNEncoder: folding.CNNEncoder,
    models.Additive: energies.Additive,
    models.LSTMDecoder: recurrence.LSTMDecoder,
    models.LuongDecoder: recurrence.LuongDecoder,
}
