"""The results page on speed: what scripts/benchmark.py measured."""

from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]
Column = tuple[str, Callable[[Row], object]]


def speed_section(records: dict[str, dict[str, Any]]) -> list[str]:
    """Training, captioning, files and memory, each from a file of its own."""
    lines = ["## Speed and memory", ""]
    for name, (title, text, tables) in PARTS.items():
        lines += [f"### {title}", "", *text]
        # ``speed-train``, and ``speed-train-on-zen-4`` of another machine.
        for stem in sorted(stem for stem in records if f"{stem}-on-".startswith(f"{name}-on-")):
            record = records[stem]
            lines += [f"`{record['command']}`, commit {record['commit']}, {record['machine']}.", ""]
            for kind, columns in tables.items():
                rows = [row for row in record["rows"] if row["row"].startswith(kind)]
                lines += _table(rows, columns) if rows else []
    return lines


def _table(rows: Sequence[Row], columns: Sequence[Column]) -> list[str]:
    return [
        f"| {' | '.join(title for title, _ in columns)} |",
        "|---" * len(columns) + "|",
        *(f"| {' | '.join(str(cell(row)) for _, cell in columns)} |" for row in rows),
        "",
    ]


def _of(key: str) -> Column:
    return key, lambda row: row[key]


def _each(title: str, key: str) -> Column:
    """All values of a group."""
    return title, lambda row: ", ".join(
        f"{name.replace('_', ' ')} {value:,}" for name, value in row.get(key, {}).items()
    )


def _both(title: str, key: str, percent: bool) -> Column:
    """Of float32 and bfloat16."""

    def cell(row: Row) -> str:
        values = (row[f"{key}_float32"], row[f"{key}_bfloat16"])
        return ", ".join(f"{100 * v:.0f} %" if percent else f"{v:.2f}" for v in values)

    return f"{title}: float32, bfloat16", cell


def _percent(title: str, key: str) -> Column:
    return title, lambda row: f"{100 * row[key]:.0f} %" if key in row else "–"


TIMES = (
    _both("× plain", "times_plain", False),
    _both("of the floor", "of_floor", True),
    _percent("of oneDNN's: float32", "of_onednn_float32"),
)
FLOOR: Column = (
    "floor × plain: float32",
    lambda row: (
        f"{row['milliseconds']['plain_float32'] / row['milliseconds']['floor_float32']:.2f}"
    ),
)
MEMORY = _each("MB", "peak_megabytes")
BESIDE_CNN: tuple[Column, ...] = (
    _of("photos"),
    ("their median size", lambda row: row.get("median_size", "–")),
    _percent("of the bare CNN", "of_bare_cnn"),
    _percent("of the folded one", "of_folded_cnn"),
    _percent("of the bare one as torch comes", "of_torch_cnn"),
    _each("photos/s", "images_per_second"),
    MEMORY,
)
MEDIANS = (
    "Medians of one run, in turn. MB: what the work holds at most beside what was there before it."
)
PARTS: dict[str, tuple[str, list[str], dict[str, Sequence[Column]]]] = {
    "speed-train": (
        "A step of training",
        [
            "Forward, loss and backward; `plain` is the same model as tutorials write it, in float32,",
            "`floor` its matrix products called bare in the same precision, as torch multiplies;",
            "`floor by onednn` in float32 by the library of the package's layers: [speed.md](speed.md).",
            MEDIANS,
        ],
        {
            "train": (
                *map(_of, ("row", "captions", "L", "V", "T")),
                *TIMES,
                FLOOR,
                _each("milliseconds", "milliseconds"),
                MEMORY,
            )
        },
    ),
    "speed-caption": (
        "Captioning from annotation vectors",
        [
            "The same yardsticks; `plain` takes one photo after the other, its MB are of an eighth of",
            "them.",
            MEDIANS,
        ],
        {
            "caption": (
                *map(_of, ("row", "beam", "batch", "photos")),
                *TIMES,
                _each("photos/s", "images_per_second"),
                MEMORY,
                _of("same_in_bfloat16"),
            )
        },
    ),
    "speed-files": (
        "From files",
        [
            "Beside the bare CNN, as its library builds it, on all cores, on the same pictures, decoded",
            "and in memory, as many at a time; with memory that is kept, as the package's commands keep",
            "it, and `as torch comes`, in a process that does not. `Folded` is the CNN as the package",
            "runs it: [speed.md](speed.md).",
            MEDIANS,
        ],
        {
            "cache": (_of("row"), *BESIDE_CNN),
            "files": (_of("row"), _of("beam"), *BESIDE_CNN),
            "batching": (
                _of("row"),
                _of("photos"),
                _each("photos/s", "images_per_second"),
                MEMORY,
                ("same sentences", lambda row: row["same_sentences"]),
            ),
            "cold": (_of("row"), _each("seconds", "seconds")),
        },
    ),
    "speed-memory": (
        "Memory",
        [
            "The greatest of all processes together, MB. `RssFile` are pages of files, such as cached",
            "annotations and libraries, which the system takes back when it needs them.",
        ],
        {
            "memory": (
                *map(_of, ("row", "photos")),
                ("precision", lambda row: row.get("precision", "–")),
                _of("seconds"),
                MEMORY,
            )
        },
    ),
    "speed-quality": (
        "From photos to scored captions",
        [
            "Flickr8k's 7,000 photos read and annotated, the 6,000 of the training split learned from,",
            "captions of the 1,000 of the development split scored: the whole command, on the clock.",
        ],
        {
            "quality": (
                *map(_of, ("row", "precision", "epochs", "minutes")),
                _each("scores", "scores"),
                MEMORY,
            )
        },
    ),
}
