"""The app in a process of its own, as its users start it."""

import re
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@contextmanager
def running(*options: str, stop: int = signal.SIGINT) -> Iterator[str]:
    """``captioner demo`` with these options: its address. It must end when it is asked to."""
    command = [sys.executable, "-m", "captioner", "demo", "--port", str(free_port()), *options]
    # A file, not a pipe, which would fill up: nobody reads it while the app runs.
    with (
        tempfile.TemporaryFile("w+") as said,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            # Tests that a script runs in the background inherit that Ctrl+C is ignored.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        ) as server,
    ):
        try:
            line = server.stdout.readline()
            found = re.match(r"captioner is at (http://\S+) ", line)
            if not found:
                said.seek(0)
                raise AssertionError(line + said.read())
            yield found[1]
        finally:
            server.send_signal(stop)
            try:
                server.communicate(timeout=30)
            except subprocess.TimeoutExpired:
                server.kill()
                raise
