"""What made a result: versions, commit and machine."""

import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from captioner import __version__


def provenance() -> dict[str, Any]:
    """What made a result: versions, commit and machine."""
    return {
        "captioner": __version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": _machine(),
        "date": time.strftime("%Y-%m-%d"),
    }


def _commit() -> str | None:
    """The commit of the checkout this runs from, with a + where it has changes; None outside one.

    A result that was kept just before is no change: of these, nothing is computed.
    """
    here = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(here), *arguments], capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) != here:
            return None
        return git("rev-parse", "--short=12", "HEAD") + (
            "+" if git("status", "--porcelain", "--", ".", ":(exclude)docs/results") else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return None


def _machine() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        said = {key.strip(): value.strip() for key, _, value in (s.partition(":") for s in lines)}
        model = said["model name"]
        if "cpu family" in said:
            # A virtual machine's name may hold several generations, which differ by half.
            model += f" (family {said['cpu family']}, model {said['model']})"
    except (OSError, KeyError):
        model = platform.processor() or platform.machine()
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    return f"{model}, {torch.get_num_threads()} threads{gpu}"
