"""Benchmarks: one question per file, measured next to its ceiling and its competitors in one run.

Absolute figures depend on the machine; the ratios within one run are comparable. A run creates its
data (up to 4 GB per case) and takes minutes.
"""
