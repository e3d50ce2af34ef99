"""Load a model by name: bundled, in a folder or a checkpoint, or from the transformers library."""

from pathlib import Path

from captioner import fast
from captioner.errors import UsageError
from captioner.predict.base_predictor import BasePredictor
from captioner.predict.predictor import Predictor
from captioner.resources import DEFAULT_MODEL, HF, find_model
from captioner.store import checkpoint


def load(model: str | Path | None = None, device: str = "auto") -> BasePredictor:
    """Load a model for ``load().caption("dog.jpg")``.

    Args:
        model: a bundled name, a model folder, a Lightning ``.ckpt``, a run folder, or ``hf:`` and the
            folder or the hub name of a model of transformers; None for the bundled default.
        device: as in ``Predictor``.

    Returns:
        A ``Predictor``, or for ``hf:`` an ``AdapterPredictor``, which has the same interface.

    Raises:
        UsageError: no such device, or transformers is not installed.
        CheckpointError: no such model, or it cannot be loaded.
    """
    if str(model).startswith(HF):
        try:
            from captioner.hf.hub import load as load_hf
        except ImportError as error:
            need = "models named hf:… need transformers: pip install 'captioner[hf]'"
            raise UsageError(need) from error
        return load_hf(str(model).removeprefix(HF), device)
    return load_own(model, device)


def load_own(model: str | Path | None = None, device: str = "auto") -> Predictor:
    """Load a model of this package; as ``load``."""
    stored = checkpoint.load(find_model(model))
    fast.accelerate(stored.captioner)
    options = stored.decoding, stored.supervision, stored.calibration
    return Predictor(stored.captioner, str(model or DEFAULT_MODEL), device, *options)
