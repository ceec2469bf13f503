"""Raw traces in: files from anyone, read without running what is in them, checked into one form.

``files`` finds and opens, ``unpickle`` and ``tensors`` read pickles and ``.pt``, ``check`` turns a
raw dict into a ``Trace``, ``read`` joins them, ``write`` writes the raw format.
"""
