"""Time and memory of work that is compared, and the settings it is compared in."""

import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import nn

from captioner import fast
from captioner.fast.malloc import give_back_memory
from captioner.fast.replacements import REPLACEMENTS

RESET_PEAK = Path("/proc/self/clear_refs")
KINDS = ("RssAnon", "RssFile", "RssShmem")
Setting = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Contestant:
    """A piece of work and the setting it runs in, which is not timed."""

    work: Callable[[], Any]
    setting: Setting = nullcontext


def replacement_names() -> list[str]:
    """Return the modules of ``captioner.fast`` that replace something."""
    return sorted({faster.__module__.rpartition(".")[2] for faster in REPLACEMENTS.values()})


@contextmanager
def replacements(
    model: nn.Module, enabled: bool = True, without: Collection[str] = ()
) -> Iterator[None]:
    """Choose the replacements of ``captioner.fast`` that a model runs with inside the block.

    ``enabled`` is False for the plain modules; ``without`` names modules of ``captioner.fast``.
    """
    before = {name: type(module) for name, module in model.named_modules()}
    plain = {faster: original for original, faster in REPLACEMENTS.items()}
    fast.restore(model, {name: plain[kind] for name, kind in before.items() if kind in plain})
    with mock.patch.dict(os.environ, CAPTIONER_FAST="1" if enabled else "0"):
        left_out = {
            name: kind
            for name, kind in fast.accelerate(model).items()
            if type(model.get_submodule(name)).__module__.rpartition(".")[2] in without
        }
        fast.restore(model, left_out)
        try:
            yield
        finally:
            fast.restore(model, before)


def settings(model: nn.Module, without: Collection[str]) -> dict[str, Setting]:
    """Return the settings with all replacements, with none, and without single ones."""
    left_out = {f"without_{name}": partial(replacements, model, without=[name]) for name in without}
    plain = partial(replacements, model, enabled=False)
    return {"ours": partial(replacements, model), "fast_off": plain, **left_out}


def medians(contestants: Mapping[str, Contestant], rounds: int) -> dict[str, float]:
    """Return median seconds; every round takes all contestants in turn, after one warm-up round."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, contestant in contestants.items():
            with contestant.setting():
                began = time.perf_counter()
                contestant.work()
                if torch.cuda.is_available():
                    torch.cuda.synchronize()
                taken = time.perf_counter() - began
            if number:
                times[name].append(taken)
    return {name: statistics.median(taken) for name, taken in times.items()}


def peaks(contestants: Mapping[str, Contestant]) -> dict[str, int]:
    """Return the peak MB of each piece of work beyond what was allocated before it.

    Empty where the system does not let a process reset its peak (``/proc/self/clear_refs``).
    """
    if not os.access(RESET_PEAK, os.W_OK):
        return {}
    found = {}
    for name, contestant in contestants.items():
        with contestant.setting():
            give_back_memory()
            RESET_PEAK.write_text("5", "ascii")
            before = _status("VmRSS")
            contestant.work()
            found[name] = round((_status("VmHWM") - before) / 1e6)
    return found


def _status(field: str) -> int:
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def command_row(name: str, command: list[str], **about: Any) -> dict[str, Any]:
    """Run a command and return its seconds and the peak memory of all its processes in MB."""
    began, samples = time.perf_counter(), []
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while process.poll() is None:
                samples.append(resident(process.pid))
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            process.kill()
        seconds = round(time.perf_counter() - began, 1)
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{' '.join(command)} failed: {errors.read()[-500:]}")
    peak = {kind: round(max(sample[kind] for sample in samples)) for kind in KINDS}
    peak["resident"] = round(max(sum(sample.values()) for sample in samples))
    return {"row": name, **about, "seconds": seconds, "peak_megabytes": peak}


def resident(root: int) -> dict[str, float]:
    """Return MB of a process and its descendants; a shared page counts for each of them."""
    parents, pages = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                lines = (entry / "status").read_text().splitlines()
            except OSError:  # the process has ended
                continue
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            parents[int(entry.name)] = int(fields["PPid"])
            pages[int(entry.name)] = [int(fields.get(k, "0 kB").split()[0]) for k in KINDS]
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    columns = zip(*(pages.get(pid, [0] * 3) for pid in family), strict=True)
    return {kind: 1024 * sum(sizes) / 1e6 for kind, sizes in zip(KINDS, columns, strict=True)}
