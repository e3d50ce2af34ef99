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
    parser.add_argument(
        "--model",
        action="append",
        default=argparse.SUPPRESS,
        help="a bundled name, a model folder, a .ckpt or a run folder; repeat it for several models "
        "(default: the bundled models)",
    )
    add_device(parser)
    parser.add_argument(
        "--host", default="127.0.0.1", help="address to listen on; 0.0.0.0 for the whole network"
    )
    parser.add_argument(
        "--port", type=number(Number(1, 65535)), default=7860, help="port to listen on"
    )
    parser.add_argument(
        "--allowed-host",
        action="append",
        default=argparse.SUPPRESS,
        metavar="NAME",
        help="also answer requests for this host name, such as that of a reverse proxy; repeat it for "
        "several",
    )
    parser.add_argument(
        "--examples",
        nargs="+",
        default=argparse.SUPPRESS,
        metavar="INPUT",
        help="photos, folders or globs to offer as examples (default: bundled photos, or generated "
        "scenes if the model was trained on them)",
    )


def run(options: argparse.Namespace) -> int:
    """Serve the app until it is interrupted and return the exit status."""
    with loading():
        from captioner.app.served_models import Models
        from captioner.app.server import run as serve
        from captioner.fast.malloc import keep_memory
        from captioner.paths import find

        keep_memory()
        given = vars(options)
        photos = find(given.get("examples", []))
        models = Models(given.get("model", []), options.device)
    serve(models, options.host, options.port, photos, given.get("allowed_host", []))
    return 0
