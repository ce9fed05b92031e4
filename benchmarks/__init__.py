"""Measurements against a bare control in the same run, printed as ratios: ``python -m benchmarks``."""
