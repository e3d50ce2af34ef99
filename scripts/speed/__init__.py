"""What scripts/benchmark.py measures: the work, its variants, time and memory."""
