"""Training and evaluation: a data set in, detectors and metrics with confidence intervals out.

Everything that is chosen (epoch, layer, sign, threshold, temperature) is chosen on validation; the
test split is read once per detector. A run can be interrupted at any time and resumed with the same
numbers; it costs one pass over the data per epoch and one file write per checkpoint.
"""
