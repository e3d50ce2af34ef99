"""What a command shows while it works: bars, only on a terminal, and how many photos failed."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress


def _bar(**options: Any) -> "Progress":
    from rich import progress
    from rich.console import Console

    console = Console(stderr=True, soft_wrap=True)  # a caption that is copied has no line breaks
    return progress.Progress(
        progress.TextColumn("{task.description}"),
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
        **options,
    )


@contextmanager
def stages() -> Iterator[Callable[..., None]]:
    """Show a bar; yield ``show(stage, total=None, advance=0)``, which updates it."""
    with _bar(transient=True) as bar:
        task = bar.add_task("", total=None)

        def show(stage: str, total: int | None = None, advance: int = 0) -> None:
            bar.update(task, description=stage, total=total, advance=advance)

        yield show


@contextmanager
def loading() -> Iterator[None]:
    """Show that the model is being loaded."""
    with stages() as show:
        show("loading the model")
        yield


@contextmanager
def captioning(count: Callable[[], int | None], done: int = 0) -> Iterator[Callable[..., None]]:
    """Show a bar on which ``done`` photos are finished; yield ``advance(photos=1)``.

    ``count`` returns the number of photos, or None if it is unknown. It runs in a thread, because
    listing a library takes time.
    """
    # Captions that are printed to the terminal appear above the bar.
    with _bar(redirect_stdout=sys.stdout.isatty()) as bar:
        task = bar.add_task("captioning", total=None, completed=done)
        if not bar.disable:
            Thread(target=lambda: bar.update(task, total=count()), daemon=True).start()
        yield lambda photos=1: bar.advance(task, photos)


def report_failures(
    failed: int, total: int, advice: str = "", what: str = "{} could not be read"
) -> int:
    """Say how many photos failed, unless there was only one, and return the exit status."""
    if failed and total > 1:
        text = what.format(f"{failed} of {total} photos")
        print(f"captioner: {text}{advice}", file=sys.stderr)
    return 1 if failed else 0
