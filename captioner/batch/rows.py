"""Records of captioned photos: what is written of a ``Caption``, or of a photo that has none."""

from typing import TYPE_CHECKING, Any

from captioner.errors import CaptionerError

if TYPE_CHECKING:
    from captioner.predict.caption import Caption

Row = dict[str, Any]


def record(name: str, result: "Caption | CaptionerError", count: int = 1) -> Row:
    """Return the row of a photo.

    Args:
        name: of the photo.
        result: its caption, or why it has none.
        count: captions per photo; with more than one, the row lists them, the best first.
    """
    if isinstance(result, CaptionerError):
        description = {"type": type(result).__name__, "message": str(result)}
        return {"image": encodable(name), "error": description}
    row = result.to_dict() | {"image": encodable(name)}
    if count > 1:
        found = [result, *result.alternatives][:count]
        row["captions"] = [caption.text for caption in found]
        row["log_probs"] = [round(caption.log_prob, 4) for caption in found]
    return row


def encodable(name: str) -> str:
    """Return a file name that UTF-8 can hold: bytes that are not UTF-8 become ``\\udcXX``."""
    return name.encode("utf-8", "backslashreplace").decode()
