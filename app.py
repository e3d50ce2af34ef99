"""Run the app, for hosts that expect an ``app.py``; the options are those of ``captioner demo``."""

import sys

from captioner.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
