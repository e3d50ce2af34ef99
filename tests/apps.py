"""The app in a process of its own, started by its command."""

import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _enable_interrupts() -> None:
    """Undo that a background process ignores SIGINT."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def running(*options: str, stop: int = signal.SIGINT) -> Iterator[str]:
    """Run ``captioner demo`` and yield its address; fail if it does not end after the signal."""
    command = [sys.executable, "-m", "captioner", "demo", "--port", str(free_port()), *options]
    with (
        tempfile.TemporaryFile("w+") as errors,  # a pipe would fill up while nobody reads it
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=errors, text=True, preexec_fn=_enable_interrupts
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
