"""The precisions that a processor supports in training."""

import logging
import platform

import torch

from captioner.provenance import cpu_info

_LOG = logging.getLogger(__name__)


def supported(precision: str | int | None, accelerator: str) -> str | int | None:
    """Return the precision to train in: the given one of Lightning, or float32 if the CPU lacks it."""
    gpu = torch.cuda.is_available() or torch.backends.mps.is_available()
    device = "cpu" if accelerator == "cpu" or not gpu else "gpu"
    if reason := unsupported(str(precision), device):
        from pytorch_lightning.utilities import rank_zero_only  # slow to import

        rank_zero_only(_LOG.warning)("%s: training in float32 instead of %s", reason, precision)
        return "32-true"
    return precision


def unsupported(precision: str, device: str) -> str | None:
    """Return why a type of device (``cpu``, ``cuda`` …) should not compute in this precision, or None.

    Without bfloat16 instructions, a training step takes ten times as long. Lightning also uses bfloat16
    for float16 on a CPU. A CPU whose instructions are unknown is allowed.
    """
    half = precision.startswith(("bf16", "16"))
    if device == "cpu" and half and cpu_has_bfloat16() is False:
        return "this CPU has no bfloat16 instructions"
    return None


def cpu_has_bfloat16() -> bool | None:
    """Return whether torch can use bfloat16 instructions of this CPU; None if unknown."""
    cpu = cpu_info()
    flags = set(cpu.get("flags", cpu.get("Features", "")).split())
    if platform.machine().lower() in ("x86_64", "amd64"):
        if torch.backends.cpu.get_cpu_capability() != "AVX512":
            return False
        return bool(flags & {"avx512_bf16", "amx_bf16"}) if flags else None
    if platform.machine().lower() in ("aarch64", "arm64") and flags:
        return "bf16" in flags
    return None
