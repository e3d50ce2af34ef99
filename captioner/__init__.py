"""An attention-based image captioner that shows where it looked for each word."""

__version__ = "0.1.0"
