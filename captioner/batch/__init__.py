"""Captions for a whole library of photos, in parallel and resumable."""
