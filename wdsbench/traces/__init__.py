"""Raw traces in: files from anyone, read without running what is in them, checked into one form.

``files`` finds and opens, ``unpickle`` and ``tensors`` read pickles and ``.pt``, ``check`` turns a
raw dict into a ``Trace`` (``reduced`` the part of it that was kept of attention maps), ``read``
joins them, ``write`` writes the raw format. ``attention`` makes edges and sketches of maps.
"""
