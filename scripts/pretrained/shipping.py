"""Turn a trained run into a bundled model: half precision, one encoder shared by all models."""

import copy
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from captioner.models.captioner import Captioner
from captioner.models.encoder import CNNEncoder
from captioner.search.options import Decoding
from captioner.store import checkpoint

PRETRAINED = Path(__file__).parents[2] / "captioner" / "pretrained"
WEIGHTS = "flickr8k"  # the name of the encoder's file and, in capitals, its ``weights`` option


def ship_encoder(run: Path) -> Path:
    """Write the encoder that a run fine-tuned to where the package looks for it.

    Only matrices are stored in half precision: some vectors of batch norms exceed its range.
    """
    encoder = checkpoint.load(run).captioner.encoder
    assert isinstance(encoder, CNNEncoder)
    tensors = {
        key: (value.half() if value.is_floating_point() and value.ndim > 1 else value).contiguous()
        for key, value in encoder.backbone.network.state_dict().items()
    }
    file = PRETRAINED / "encoders" / f"{encoder.name}-{WEIGHTS}.safetensors"
    file.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, file)
    file.chmod(0o644)
    return file


def ship(runs: Sequence[Path], name: str, card: str, decoding: Decoding) -> Path:
    """Write a run's model, or the mean of several, to where the package looks for it."""
    stored = [checkpoint.load(run) for run in runs]
    model = with_bundled_encoder(mean([one.captioner for one in stored]))
    folder, supervision = PRETRAINED / name, max(one.supervision for one in stored)
    checkpoint.save(model, folder, card, decoding, supervision, half=True)
    return folder


def save_mean(runs: Sequence[Path], folder: Path) -> None:
    """Average the weights of several runs, and save them as a model to start from."""
    stored = [checkpoint.load(run) for run in runs]
    found = mean([one.captioner for one in stored])
    checkpoint.save(found, folder, "", stored[0].decoding, max(one.supervision for one in stored))


def mean(captioners: Sequence[Captioner]) -> Captioner:
    """Return a captioner whose weights are the mean of those of captioners of one design."""
    found = copy.deepcopy(captioners[0])
    states = [captioner.state_dict() for captioner in captioners]
    for key, tensor in found.state_dict().items():
        if tensor.is_floating_point():
            tensor.copy_(torch.stack([state[key].double() for state in states]).mean(0))
    return found


def with_bundled_encoder(captioner: Captioner) -> Captioner:
    """Return the same captioner with the bundled, frozen encoder.

    Raises:
        SystemExit: if the model was trained with other encoder weights.
    """
    tree = copy.deepcopy(captioner.config)
    if isinstance(captioner.encoder, CNNEncoder):  # two streams name the bundled weights already
        tree["encoder"]["init_args"] |= {"weights": WEIGHTS.upper(), "trainable": False}
    other = Captioner.from_config(tree, captioner.vocabulary)
    other.encoder.load_pretrained()
    for part in ("neck", "decoder"):
        getattr(other, part).load_state_dict(getattr(captioner, part).state_dict())
    learned = dict(captioner.encoder.named_parameters())
    for key, tensor in other.encoder.named_parameters():
        if not torch.allclose(learned[key], tensor, rtol=1e-3, atol=1e-6):
            raise SystemExit(
                f"the model was trained with another encoder than the bundled one: {key}"
            )
    return other.eval()
