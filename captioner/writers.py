"""The forms that ``captioner caption`` writes its results in."""

import csv
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from captioner.errors import CaptionerError

if TYPE_CHECKING:
    from captioner.predictor import Caption

Results = Iterable["tuple[Path, Caption | CaptionerError]"]


@runtime_checkable
class Stream(Protocol):
    """A file open for text, or standard output."""

    def write(self, text: str, /) -> int:
        """Writes text."""
        ...

    def flush(self) -> None:
        """Sends on what was written."""
        ...


def _record(path: Path, result: "Caption | CaptionerError") -> dict[str, Any]:
    if isinstance(result, CaptionerError):
        return {
            "image": str(path),
            "error": {"type": type(result).__name__, "message": str(result)},
        }
    return result.record()


def _write_text(results: Results, stream: Stream) -> None:
    for path, result in results:
        if not isinstance(result, CaptionerError):
            print(f"{path}\t{result.text}", file=stream, flush=True)


def _write_jsonl(results: Results, stream: Stream) -> None:
    for path, result in results:
        print(json.dumps(_record(path, result), ensure_ascii=False), file=stream, flush=True)


def _write_csv(results: Results, stream: Stream) -> None:
    writer = csv.writer(stream)
    writer.writerow(["image", "caption", "log_prob", "error"])
    for path, result in results:
        if isinstance(result, CaptionerError):
            writer.writerow([path, "", "", result])
        else:
            writer.writerow([path, result.text, round(result.log_prob, 4), ""])


def _write_coco(results: Results, stream: Stream) -> None:
    """COCO's results format; the id is the number that ends a COCO file name, else the name."""
    rows = [
        {"image_id": _coco_id(path), "caption": result.text}
        for path, result in results
        if not isinstance(result, CaptionerError)
    ]
    json.dump(rows, stream, ensure_ascii=False, indent=1)
    stream.write("\n")


def _coco_id(path: Path) -> int | str:
    digits = path.stem.rpartition("_")[2]
    return int(digits) if digits.isdigit() and len(digits) == 12 else path.name


WRITERS: dict[str, Callable[[Results, Stream], None]] = {
    "text": _write_text,
    "jsonl": _write_jsonl,
    "csv": _write_csv,
    "coco": _write_coco,
}
