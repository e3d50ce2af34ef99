"""The file formats of ``captioner caption``: text, JSON lines, CSV and COCO results.

A writer takes pairs of the path and the row of a photo; ``captioner.batch.rows`` describes rows.
"""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.batch.rows import Row
from captioner.errors import printable

if TYPE_CHECKING:
    from typing import TextIO

Results = Iterable[tuple[Path, Row]]


def write_text(results: Results, stream: "TextIO") -> None:
    """Write ``path <tab> caption`` lines; photos without a caption are left out."""
    for path, row in results:
        if "error" not in row:
            print(f"{printable(str(path), 4096)}\t{row['caption']}", file=stream, flush=True)


def write_jsonl(results: Results, stream: "TextIO") -> None:
    """Write one JSON record per photo; a photo that failed has ``error`` instead of a caption."""
    for path, row in results:
        record = {**row, "image": str(path)}
        print(json.dumps(record, ensure_ascii=False), file=stream, flush=True)


def write_csv(results: Results, stream: "TextIO") -> None:
    """Write the columns image, caption, log_prob and error."""
    writer = csv.writer(stream)
    writer.writerow(["image", "caption", "log_prob", "error"])
    for path, row in results:
        error = row.get("error", {}).get("message", "")
        writer.writerow([path, row.get("caption", ""), row.get("log_prob", ""), error])


def write_coco(results: Results, stream: "TextIO") -> None:
    """Write COCO's results format; photos without a caption are left out."""
    rows = [
        {"image_id": _coco_id(path), "caption": row["caption"]}
        for path, row in results
        if "error" not in row
    ]
    json.dump(rows, stream, ensure_ascii=False, indent=1)
    stream.write("\n")


def _coco_id(path: Path) -> int | str:
    """The 12-digit number at the end of a COCO file name; for other files, the name."""
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdigit() and len(digits) == 12 else path.name


WRITERS: "dict[str, Callable[[Results, TextIO], None]]" = {
    "text": write_text,
    "jsonl": write_jsonl,
    "csv": write_csv,
    "coco": write_coco,
}
