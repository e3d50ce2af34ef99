"""Load a model of transformers from a folder or, by its name, from the hub."""

from pathlib import Path
from typing import Any

import transformers

from captioner.errors import CheckpointError, joined
from captioner.hf.families import family_of
from captioner.hf.model import HFAdapter, quiet
from captioner.predict.adapter import AdapterPredictor
from captioner.predict.predictor import torch_device
from captioner.resources import HF


def load(name: str, device: str = "auto") -> AdapterPredictor:
    """Load a model from a folder, without a network, or from the hub, into the cache of transformers.

    No code from the model is run, and only weights in safetensors are read.

    Raises:
        CheckpointError: no such model, of an unknown family, or without safetensors.
    """
    folder = Path(name).expanduser()
    source = str(folder) if folder.is_dir() else name
    safe: dict[str, Any] = {"trust_remote_code": False, "local_files_only": folder.is_dir()}
    try:
        config, _ = transformers.PreTrainedConfig.get_config_dict(source, **safe)
        family = family_of(name, config)
        with quiet(bars=not folder.is_dir()):
            model = getattr(transformers, family.architecture).from_pretrained(
                source, use_safetensors=True, attn_implementation="eager", **safe
            )
            processor = _processor(source, safe)
            tokenizer = getattr(processor, "tokenizer", None)
            tokenizer = tokenizer or transformers.AutoTokenizer.from_pretrained(source, **safe)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise CheckpointError(
            f"the model '{name}' cannot be loaded by transformers {transformers.__version__}: "
            f"{type(error).__name__}: {joined(error)}; give a folder or a hub name with config.json, "
            "model.safetensors and the files of its processor and tokenizer"
        ) from error
    model = model.to(torch_device(device)).eval()
    return AdapterPredictor(HFAdapter(family, model, processor, tokenizer), f"{HF}{name}")


def _processor(source: str, safe: dict[str, Any]) -> Any:
    """Return the processor, or the image processor of a model that has none for text."""
    try:
        processor = transformers.AutoProcessor.from_pretrained(source, **safe)
    except (OSError, ValueError, KeyError):
        processor = None
    if hasattr(processor, "image_processor"):
        return processor
    return transformers.AutoImageProcessor.from_pretrained(source, **safe)
