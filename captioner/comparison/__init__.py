"""Comparison of training runs: one table with differences and intervals, and plots."""
