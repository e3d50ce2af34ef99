"""The app, for hosts that look for an ``app.py``; ``captioner demo`` has its options."""

import sys

from captioner.cli import main

if __name__ == "__main__":
    sys.exit(main(["demo", *sys.argv[1:]]))
