"""Benchmarks: one scenario a file, each beside its ceiling and its competitors, in one run.

Figures move from machine to machine; the ratios within one run are what counts.
"""
