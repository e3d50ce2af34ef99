"""Tables of speed and memory: what scripts/benchmark.py measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from results_tables import Record, number, table

from captioner.markdown import MISSING


class SpeedTables:
    """The tables on speed and memory, from the content of every file of results by its stem."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self.records = records

    def training_steps(self) -> str:
        """Training steps against a tutorial's code."""
        rows = self.records["speed-train"]["rows"]
        return _compared(rows, ("row", "L"), "milliseconds", "ms")

    def searches(self) -> str:
        """Beam search and greedy search against a tutorial's code."""
        rows = self.records["speed-caption"]["rows"]
        return _compared(rows, ("row", "beam", "batch"), "images_per_second", "photos/s")

    def files(self) -> str:
        """Filling the cache, captioning JPEG files, and the start of a command."""
        rows = self.records["speed-files"]["rows"]
        timed = [row for row in rows if "images_per_second" in row]
        names = ("bare_cnn", "fast_off", "ours")
        cells = [
            [
                *(row["row"], row.get("beam", MISSING)),
                *(number(row["images_per_second"].get(name)) for name in names),
                number(row["peak_megabytes"].get("ours"), 0),
            ]
            for row in timed
        ]
        head = "row | beam | bare CNN, photos/s | `CAPTIONER_FAST=0` | ours | MB ours"
        cold = [
            f"{row['row']}: {', '.join(f'{name} {taken}' for name, taken in row['seconds'].items())}."
            for row in rows
            if "seconds" in row
        ]
        return "\n\n".join([table(head, cells), *cold])

    def memory(self) -> str:
        """Peak memory of whole commands."""
        rows = [
            [
                *(row["row"].removeprefix("memory: "), number(row["photos"], 0)),
                *(row.get("precision", MISSING), row["seconds"]),
                *(number(row["peak_megabytes"][key], 0) for key in ("resident", "RssAnon")),
            ]
            for row in self.records["speed-memory"]["rows"]
        ]
        return table("command | photos | precision | seconds | resident | RssAnon", rows)


def _compared(rows: Sequence[Record], keys: Sequence[str], times: str, unit: str) -> str:
    """Return a table against the tutorial's code."""
    names = ("plain_float32", "fast_off_float32", "ours_float32", "ours_bfloat16")
    cells: list[list[Any]] = []
    for row in rows:
        held = row.get("peak_megabytes", {})
        values = [*(row[key] for key in keys), *(number(row[times].get(name)) for name in names)]
        megabytes = [number(held.get(name), 0) for name in ("plain_float32", "ours_float32")]
        cells.append([*values, number(row.get("times_plain_float32"), 2), *megabytes])
    head = f"{' | '.join(keys)} | plain, {unit} | `CAPTIONER_FAST=0` | ours | ours, bfloat16"
    return table(f"{head} | × plain | MB plain | MB ours", cells)
