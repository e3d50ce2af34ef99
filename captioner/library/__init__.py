"""Captions for a whole library of photos: in order of use, sources, batch, shards, workers, cluster."""
