"""Checks of devices and of Lightning's accelerators, without torch."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from captioner.cli.parser import did_you_mean
from captioner.errors import UsageError


def check_device(option: str, name: str) -> None:
    """Check the name of a torch device."""
    if not re.fullmatch(r"auto|cpu|mps|cuda(:\d{1,3})?", name):
        near = did_you_mean(name, ("auto", "cpu", "cuda", "mps"))
        expected = "expected auto, cpu, cuda, cuda:1 or mps"
        raise UsageError(f"{option}: unknown device {name!r}{near}; {expected}")


def check_gpu(option: str, name: str) -> None:
    """Check that this machine has a GPU if the name needs one."""
    needs_gpu = name in ("gpu", "mps") or name.startswith("cuda")
    if (needs_gpu and not has_gpu()) or (name == "mps" and sys.platform != "darwin"):
        raise UsageError(f"{option}: this machine has no {name!r}; give cpu or auto")


def has_gpu() -> bool:
    """Whether this machine has a GPU driver; always true outside Linux, where it cannot be checked."""
    drivers = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")  # of NVIDIA, Tegra, AMD and Windows
    return sys.platform != "linux" or any(any(Path("/dev").glob(name)) for name in drivers)


def check_accelerator(accelerator: Any, devices: Any) -> None:
    """Check Lightning's ``accelerator`` and ``devices`` on this machine; None is the default."""
    name, known = str(accelerator or "auto"), ("auto", "cpu", "gpu", "cuda", "mps")
    if name not in known:
        near = did_you_mean(name, known)
        raise UsageError(f"--trainer.accelerator: expected {', '.join(known)}, got {name!r}{near}")
    check_gpu("--trainer.accelerator", name)
    number, cores = str(devices or "auto"), os.cpu_count() or 1
    if number != "auto" and (name == "cpu" or not has_gpu()):
        if not number.isdecimal() or not 1 <= int(number) <= cores:
            raise UsageError(
                f"--trainer.devices: expected 1 to {cores} processes (one per core, without a "
                f"GPU) or auto; got {number}"
            )
    elif not re.fullmatch(r"auto|-1|[1-9]\d*|[\[\d, \]]+", number):
        raise UsageError(
            f"--trainer.devices: expected a number of GPUs, a list of them, or auto; got {number}"
        )
