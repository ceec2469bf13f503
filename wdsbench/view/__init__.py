"""Looking at traces, data sets and runs."""
