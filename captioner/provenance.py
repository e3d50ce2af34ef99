"""The versions, commit and machine behind a result."""

import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from captioner import __version__

_CPUINFO = Path("/proc/cpuinfo")


def provenance() -> dict[str, Any]:
    """Return versions, commit, machine and date, for a result file."""
    return {
        "captioner": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": _machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _commit() -> str | None:
    """Return the commit of this checkout, with a + for changes outside docs/results; None elsewhere."""
    root = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.check_output(
            command, cwd=root, stderr=subprocess.DEVNULL, text=True
        ).strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != root:
            return None
        changes = git("status", "--porcelain", "--", ".", ":(exclude)docs/results")
        return git("rev-parse", "--short=12", "HEAD") + ("+" if changes else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def cpu_info() -> dict[str, str]:
    """Return what Linux reports about the last processor core; nothing on other systems."""
    try:
        lines = _CPUINFO.read_text().splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _machine() -> str:
    cpu = cpu_info()
    model = cpu.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in cpu:  # in a virtual machine one name can mean several generations
        model += f" (family {cpu['cpu family']}, model {cpu.get('model')})"
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {torch.get_num_threads()} threads{gpu}"
