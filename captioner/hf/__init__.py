"""Captioners of the transformers library: docs/any-captioner.md."""
