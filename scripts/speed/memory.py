"""Memory: of whole commands, all their processes together, and of one piece of work."""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from captioner.memory import give_back_memory

ANEW = Path("/proc/self/clear_refs")
KINDS = ("RssAnon", "RssFile", "RssShmem")


@dataclass(frozen=True)
class Watched:
    """What became of a command.

    Attributes:
        status: its exit status.
        seconds: on the clock.
        memory: (seconds since its start, MB resident by kind) over time. ``RssFile`` are pages of
            files, which the system takes back when it needs them.
        errors: its standard error.
    """

    status: int
    seconds: float
    memory: list[tuple[float, dict[str, float]]]
    errors: str

    def peak(self) -> dict[str, float]:
        """The greatest of each kind, and of their sum."""
        totals = [sum(kinds.values()) for _, kinds in self.memory]
        kinds = {kind: round(max(now[kind] for _, now in self.memory)) for kind in KINDS}
        return {"resident": round(max(totals)), **kinds}


def watch(command: list[str], every: float = 1.0) -> Watched:
    """Runs a command and looks at it so often."""
    began = time.perf_counter()
    memory = []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while process.poll() is None:
                memory.append((round(time.perf_counter() - began, 1), resident(process.pid)))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(every)
        finally:
            process.kill()
        errors.seek(0)
        seconds = time.perf_counter() - began
        return Watched(process.returncode, seconds, memory, errors.read())


def resident(root: int) -> dict[str, float]:
    """MB of a process and all its descendants; a page that several share counts for each."""
    parents, pages = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text().splitlines()
            except OSError:  # it has ended
                continue
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            parents[int(entry.name)] = int(fields["PPid"])
            pages[int(entry.name)] = [int(fields.get(k, "0 kB").split()[0]) for k in KINDS]
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    sums = [
        sum(column) for column in zip(*(pages.get(pid, [0] * 3) for pid in family), strict=True)
    ]
    return {kind: 1024 * total / 1e6 for kind, total in zip(KINDS, sums, strict=True)}


def row(name: str, command: list[str], **about: Any) -> dict[str, Any]:
    """Seconds and the greatest memory of a command."""
    seen = watch(command, every=0.2)
    if seen.status:
        raise RuntimeError(f"{' '.join(command)} ended with {seen.status}: {seen.errors[-500:]}")
    return {"row": name, **about, "seconds": round(seen.seconds, 1), "peak_megabytes": seen.peak()}


def peaks(contestants: Mapping[str, Callable[[], Any]], device: str = "cpu") -> dict[str, int]:
    """MB that each piece of work holds at most beside what was there before; nothing where Linux's own
    count, which can be begun anew, is missing. Not of floors, which hold all they need beforehand."""
    if device == "cpu" and not os.access(ANEW, os.W_OK):
        return {}
    return {
        name: round(_peak(work, device) / 1e6)
        for name, work in contestants.items()
        if not name.startswith("floor")
    }


def _peak(work: Callable[[], Any], device: str) -> int:
    """Bytes; on a GPU of tensors there, else of the whole process."""
    if device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return torch.cuda.max_memory_allocated(device) - before
    give_back_memory()
    ANEW.write_text("5", "ascii")  # the peak begins anew
    before = _status("VmRSS")
    work()
    return _status("VmHWM") - before


def _status(field: str) -> int:
    """Bytes, as the system counts them for this process."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))
