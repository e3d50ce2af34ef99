"""Times of things that are compared: in turn, in one run, as medians."""

import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def autocast(device: str, dtype: torch.dtype) -> AbstractContextManager[Any]:
    """Nothing for float32."""
    return (
        nullcontext()
        if dtype == torch.float32
        else torch.autocast(torch.device(device).type, dtype)
    )


def medians(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, device: str = "cpu"
) -> dict[str, float]:
    """The median seconds of each; every round takes all in turn, and the first is not counted."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        for name, work in contestants.items():
            began = time.perf_counter()
            work()
            if device.startswith("cuda"):
                torch.cuda.synchronize()
            if number:
                times[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in times.items()}


def ratios(seconds: Mapping[str, float]) -> dict[str, float]:
    """Of the yardsticks ``plain`` and ``floor`` to ``ours``, in each precision; of ``onednn`` in one."""
    found = {}
    for kind in KINDS:
        if (ours := seconds.get(f"ours_{kind}")) is not None:
            found[f"times_plain_{kind}"] = round(seconds["plain_float32"] / ours, 2)
            found[f"of_floor_{kind}"] = round(seconds[f"floor_{kind}"] / ours, 3)
    if "floor_by_onednn" in seconds:
        found["of_onednn_float32"] = round(seconds["floor_by_onednn"] / seconds["ours_float32"], 3)
    return found
