"""Runs beside each other: what they were scored at, in one table and in plots."""
