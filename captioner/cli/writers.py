"""The file formats of ``captioner caption``: text, JSON lines, CSV and COCO results.

A writer takes pairs of the path and the row of a photo; ``captioner.batch.rows`` describes rows.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from captioner.batch.rows import Row
from captioner.errors import printable

if TYPE_CHECKING:
    from typing import TextIO

Results = Iterable[tuple[Path, Row]]


def write_text(results: Results, stream: "TextIO") -> None:
    """Write ``path <tab> caption`` lines; photos that cannot be read are left out.

    A third column has the confidence, if it was requested.
    """
    for path, row in results:
        if "error" not in row:
            parts = [printable(str(path), 4096), row["caption"]]
            parts += [f"{row['confidence']:.0%}"] if "confidence" in row else []
            print(*parts, sep="\t", file=stream, flush=True)


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
    """Write COCO's results format; photos without a caption are left out.

    The id of a COCO photo is the 12-digit number at the end of its name; the id of
    other photos is their name, with the folders if photos share a name.
    """
    captions = {path: row["caption"] for path, row in results if row.get("caption")}
    names = Counter(path.name for path in captions)
    rows: list[dict[str, Any]] = []
    for path, caption in captions.items():
        digits = re.fullmatch(r"(?:.*_)?(\d{12})", path.stem)
        name = path.name if names[path.name] == 1 else path.as_posix()
        rows.append({"image_id": int(digits[1]) if digits else name, "caption": caption})
    json.dump(rows, stream, ensure_ascii=False, indent=1)
    stream.write("\n")


WRITERS = {"text": write_text, "jsonl": write_jsonl, "csv": write_csv, "coco": write_coco}
SUFFIXES = {".txt": "text", ".jsonl": "jsonl", ".csv": "csv", ".json": "coco"}
