"""What scripts/benchmark.py is made of: yardsticks, a clock, and rows of measurements."""
