"""A trained run → a bundled model: half precision, the fine-tuned encoder stored once for all."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from captioner import checkpoint
from captioner.decoding import Decoding
from captioner.models.captioner import Captioner
from captioner.models.encoder import CNNEncoder

PRETRAINED = Path(__file__).parents[2] / "captioner" / "pretrained"
WEIGHTS = "flickr8k"  # what the encoder's file is called, and in capitals its ``weights``


def ship_encoder(run: Path) -> Path:
    """Writes the encoder that a run has fine-tuned to where the package looks for it.

    Matrices in half precision; vectors are few, and some of batch norm's are too large for it.
    """
    encoder = checkpoint.load(run).captioner.encoder
    assert isinstance(encoder, CNNEncoder)
    tensors = {
        key: (value.half() if value.is_floating_point() and value.ndim > 1 else value).contiguous()
        for key, value in encoder.trunk.network.state_dict().items()
    }
    file = PRETRAINED / "encoders" / f"{encoder.name}-{WEIGHTS}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    file.chmod(0o644)
    return file


def ship(runs: Sequence[Path], name: str, card: str, decoding: Decoding) -> Path:
    """Writes a run's model, or the mean of several, to where the package looks for it, its encoder
    named, not stored."""
    stored = [checkpoint.load(run) for run in runs]
    folder = PRETRAINED / name
    checkpoint.save(
        with_bundled_encoder(mean([one.captioner for one in stored])),
        folder,
        card,
        decoding,
        max(one.supervision for one in stored),
        half=True,
    )
    return folder


def mean(captioners: Sequence[Captioner]) -> Captioner:
    """The one whose every weight is the mean of those of captioners of one design and one beginning."""
    found = copy.deepcopy(captioners[0])
    states = [captioner.state_dict() for captioner in captioners]
    for key, tensor in found.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.stack([state[key].double() for state in states]).mean(0))
    return found


def with_bundled_encoder(captioner: Captioner) -> Captioner:
    """The same captioner behind the encoder that the package brings, which does not learn."""
    tree = copy.deepcopy(captioner.config)
    tree["encoder"]["init_args"] |= {"weights": WEIGHTS.upper(), "trainable": False}
    other = Captioner.from_config(tree, captioner.vocabulary)
    other.encoder.load_pretrained()
    for part in ("refiner", "decoder"):
        getattr(other, part).load_state_dict(getattr(captioner, part).state_dict())
    learned = dict(captioner.encoder.named_parameters())
    for key, tensor in other.encoder.named_parameters():
        if not torch.allclose(learned[key], tensor, rtol=1e-3, atol=1e-6):
            raise SystemExit(f"the bundled encoder is not the one this model learned with: {key}")
    return other.eval()
