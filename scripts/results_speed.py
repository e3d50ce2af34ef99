"""Tables of speed and memory: what scripts/benchmark.py and its neighbours measured."""

from collections.abc import Mapping, Sequence
from typing import Any

from results_tables import Record, number, table

from captioner.markdown import MISSING

BASE = {"captions": 80, "V": 2500, "T": 21}  # the sizes of the Flickr8k configuration
CELLS = (49, 196)
WITHOUT = "without_"


class SpeedTables:
    """The tables on speed and memory, from the content of every file of results by its stem."""

    def __init__(self, records: Mapping[str, Record]) -> None:
        self.records = records

    def machines(self, name: str) -> list[Record]:
        """Return a record and its repetitions on other machines, ``NAME-on-…``."""
        stems = sorted(stem for stem in self.records if f"{stem}-on-".startswith(f"{name}-on-"))
        return [self.records[stem] for stem in stems]

    def rows(self, name: str) -> list[Record]:
        """Return the rows of a record on all machines, each with its machine."""
        found = self.machines(name)
        return [{**row, "machine": record["machine"]} for record in found for row in record["rows"]]

    def training_steps(self) -> str:
        """Training steps against a tutorial's code."""
        rows = [
            row
            for row in self.rows("speed-train")
            if row["L"] in CELLS and all(row[key] == value for key, value in BASE.items())
        ]
        return _compared(rows, ("row", "L"), "milliseconds", "ms")

    def searches(self) -> str:
        """Beam search and greedy search against a tutorial's code."""
        rows = self.rows("speed-caption")
        return _compared(rows, ("row", "beam", "batch"), "images_per_second", "photos/s")

    def files(self) -> str:
        """Filling the cache, captioning JPEG files, and the start of a command."""
        rows = self.rows("speed-files")
        names = ("bare_cnn", "fast_off", "ours")
        timed = [row for row in rows if "bare_cnn" in row.get("images_per_second", {})]
        cells = [
            [
                *(row["row"], row.get("beam", MISSING)),
                *(number(row["images_per_second"].get(name)) for name in names),
                *(number(row.get("peak_megabytes", {}).get("ours"), 0), row["machine"]),
            ]
            for row in timed
        ]
        head = "row | beam | bare CNN, photos/s | `CAPTIONER_FAST=0` | ours | MB ours | machine"
        notes = [
            f"{row['row']}: {_pairs(row.get('seconds') or row['images_per_second'])}; {row['machine']}."
            for row in rows
            if row not in timed
        ]
        ablation = _ablation(timed, ("row", "beam"), "images_per_second", "ours")
        return "\n\n".join(filter(None, [table(head, cells), ablation, "\n".join(notes)]))

    def memory(self) -> str:
        """Peak memory of whole commands."""
        rows = [
            [
                *(row["row"].removeprefix("memory: "), number(row["photos"], 0)),
                *(row.get("precision", MISSING), row["seconds"]),
                *(number(row["peak_megabytes"][key], 0) for key in ("resident", "RssAnon")),
                row["machine"],
            ]
            for row in self.rows("speed-memory")
        ]
        return table("command | photos | precision | seconds | resident | RssAnon | machine", rows)

    def data(self) -> str:
        """A data set of COCO's size."""
        rows = [
            [
                f"{row['processes'] - 1}, {method}",
                *(number(row[key], 0) for key in ("images", "captions")),
                *(row[key]["seconds"] for key in ("listing", "listing_and_words")),
                *(row["first_batch_seconds"], number(row["all_megabytes"], 0)),
                row["megabytes_of_the_data"],
            ]
            for method, row in self.records["data"]["workers"].items()
        ]
        head = "workers | images | captions | listing, s | listing and words, s | first batch, s"
        return table(f"{head} | all processes, MB | of the data set, MB", rows)


def _compared(rows: Sequence[Record], keys: Sequence[str], times: str, unit: str) -> str:
    """Return a table against the tutorial's code, and one of the replacements if measured."""
    names = ("plain_float32", "fast_off_float32", "ours_float32", "ours_bfloat16")
    cells: list[list[Any]] = []
    for row in rows:
        held = row.get("peak_megabytes", {})
        values = [*(row[key] for key in keys), *(number(row[times].get(name)) for name in names)]
        megabytes = [number(held.get(name), 0) for name in ("plain_float32", "ours_float32")]
        times_plain = number(row.get("times_plain_float32"), 2)
        cells.append([*values, times_plain, *megabytes, row["machine"]])
    head = f"{' | '.join(keys)} | plain, {unit} | `CAPTIONER_FAST=0` | ours | ours, bfloat16"
    compared = table(f"{head} | × plain | MB plain | MB ours | machine", cells)
    ablation = _ablation(rows, keys, times, "ours_float32")
    return "\n\n".join(filter(None, [compared, ablation]))


def _ablation(rows: Sequence[Record], keys: Sequence[str], times: str, ours: str) -> str:
    """Return a table of single replacements switched off, empty if none was measured."""
    rows = [row for row in rows if any(name.startswith(WITHOUT) for name in row[times])]
    names = list(dict.fromkeys(n for row in rows for n in row[times] if n.startswith(WITHOUT)))
    cells = [
        [
            *(row.get(key, MISSING) for key in keys),
            *(number(row[times].get(n)) for n in (ours, *names)),
        ]
        for row in rows
    ]
    titles = (*keys, "all replacements", *(name.replace("_", " ") for name in names))
    return table(" | ".join(titles), cells) if rows else ""


def _pairs(values: Mapping[str, float]) -> str:
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in values.items())
