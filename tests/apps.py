"""The app in a process of its own, started by its command."""

import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(*options: str, stop: int = signal.SIGINT, log: Path | None = None) -> Iterator[str]:
    """Run ``captioner demo`` and yield its address; fail if it does not end after the signal.

    ``log`` receives what it writes to standard error.
    """
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "captioner", "demo", "--port", str(port), *options]
    with (
        log.open("w+")
        if log
        else tempfile.TemporaryFile("w+") as errors,  # a pipe would fill up while nobody reads it
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            # A background process ignores SIGINT.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as server,
    ):
        try:
            line = server.stdout.readline()
            match = re.match(r"captioner is at (http://\S+) ", line)
            if not match:
                errors.seek(0)
                raise AssertionError(line + errors.read())
            yield match[1]
        finally:
            server.send_signal(stop)
            try:
                server.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                raise


def resident(process: int) -> int:
    """The memory of a process in bytes."""
    pages = Path(f"/proc/{process}/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()
