"""Open the app in a browser.

captioner demo
captioner demo --model transformer --model runs/coco --port 8080
captioner demo --host 0.0.0.0 --examples holiday/
"""

import argparse

from captioner.cli.arguments import add_device, number
from captioner.cli.progress import loading
from captioner.limits import Number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``demo``."""
    add = parser.add_argument
    text = (
        "a bundled name, a model folder, a .ckpt, a run folder or hf:NAME_OR_FOLDER; repeat it for "
    )
    text += "several models (default: the bundled models)"
    add("--model", action="append", default=[], help=text)
    add_device(parser)
    text = "address to listen on; 0.0.0.0 for the whole network"
    add("--host", default="127.0.0.1", help=text)
    add("--port", type=number(Number(1, 65535)), default=7860, help="port to listen on")
    text = "also answer requests for this host name, e.g. of a reverse proxy; repeat it for several"
    add("--allowed-host", action="append", default=[], metavar="NAME", help=text)
    text = "photos, folders or globs to offer as examples (default: bundled photos, or generated scenes "
    text += "if the first model was trained on them)"
    add("--examples", nargs="+", default=[], metavar="INPUT", help=text)


def run(options: argparse.Namespace) -> int:
    """Serve the app until it is interrupted and return the exit status."""
    with loading():
        from captioner.app.served_models import Models
        from captioner.app.server import run as serve
        from captioner.fast.malloc import keep_memory
        from captioner.photos.paths import find

        keep_memory()
        models = Models(options.model, options.device)
    serve(models, options.host, options.port, find(options.examples), options.allowed_host)
    return 0
