"""The server of the app."""

import ipaddress
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from captioner.app.example_photos import examples
from captioner.app.page import LOOK, build
from captioner.app.served_models import CONCURRENCY, Models
from captioner.app.upload import MAX_FILE
from captioner.errors import UsageError

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")

LAUNCH: dict[str, Any] = {
    **LOOK,
    "max_file_size": MAX_FILE,
    "state_session_capacity": 100,  # open pages whose state is kept; the oldest is dropped first
    "footer_links": ["api"],
    "ssr_mode": False,
    "run_history": False,
    "enable_monitoring": False,
    "prevent_thread_lock": True,
    "quiet": True,
}


@contextmanager
def serving(
    models: Models,
    host: str = "127.0.0.1",
    port: int | None = None,
    given: Sequence[Path] = (),
    allowed_hosts: Sequence[str] = (),
) -> Iterator[str]:
    """Run the app and yield its address; uploads and drawings are deleted at the end.

    Port None means a free one from 7860. ``given`` are images to offer as examples. A port in use and a
    host that is no address of this machine raise ``UsageError``.
    """
    # Or a page of another site could reach a server on this machine by DNS rebinding.
    hosts = hosts_to_answer(host, allowed_hosts)
    gate = Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    with tempfile.TemporaryDirectory(prefix="captioner-app-") as folder:
        os.environ["GRADIO_TEMP_DIR"] = folder  # Gradio keeps uploads and drawings here
        page = build(models, examples(models, given, Path(folder)))
        page.queue(max_size=128, default_concurrency_limit=CONCURRENCY)  # waiting requests
        try:
            _, url, _ = page.launch(
                server_name=host, server_port=port, app_kwargs={"middleware": [gate]}, **LAUNCH
            )
        except OSError as error:
            text = f"cannot listen on {host}:{port}; give another --port or --host"
            raise UsageError(text) from error
        try:
            yield url
        finally:
            page.close(verbose=False)


def hosts_to_answer(address: str, allowed: Sequence[str]) -> list[str]:
    """Return the names in the ``Host`` header to answer on an address; "*" stands for all."""
    try:
        local = ipaddress.ip_address(address.strip("[]")).is_loopback
    except ValueError:
        local = address == "localhost"
    return [*LOOPBACK, *allowed] if local or allowed else ["*"]


def run(models: Models, host: str, port: int, *options: Sequence[Any]) -> None:
    """Serve the app until Ctrl+C or SIGTERM, then delete its files; options as in ``serving``."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with serving(models, host, port, *options) as url:
        print(f"captioner is at {url} (Ctrl+C ends it)", flush=True)
        threading.Event().wait()
