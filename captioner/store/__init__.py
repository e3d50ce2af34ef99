"""Model folders and checkpoints: read, check, write."""
