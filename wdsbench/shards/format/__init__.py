"""The format of a data set: member kinds, index, sample table, tar members, names, provenance."""
