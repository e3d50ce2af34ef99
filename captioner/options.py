"""Kinds of numbers that commands take."""

import argparse


def positive(text: str) -> int:
    """A whole number from 1; argparse tells of any other."""
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)
