"""A few pictures of where a trained model looked, for whoever trained it to see."""

from collections import Counter
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from captioner import overlay
from captioner.files import write_bytes
from captioner.predictor import Predictor


def draw(predictor: Predictor, paths: Sequence[str], folder: Path) -> int:
    """Writes ``folder/NAME.png`` for each picture: where the model looked for each word of its caption.

    Args:
        predictor: the model.
        paths: of the pictures.
        folder: made if it is not there.

    Returns:
        How many were written.

    Raises:
        ImageError: a picture cannot be read.
    """
    stems = Counter(Path(path).stem for path in paths)
    for number, (path, caption) in enumerate(
        zip(paths, predictor.caption(list(paths)), strict=True), start=1
    ):
        stream = BytesIO()
        overlay.figure(caption).save(stream, "PNG")
        stem = Path(path).stem
        name = stem if stems[stem] == 1 else f"{stem}-{number}"  # in folders of their own
        write_bytes(folder / f"{name}.png", stream.getvalue())
    return len(paths)
