"""The version of a data set's files, ``wdsbench_format`` in ``index.json``, and who can read it.

Version 1 is the only one so far. A change that an older reader would misread gets a new number:
other bytes in an existing member, column or key. These changes keep the number, because an older
reader either ignores them or refuses the index with an error:

- keys of ``provenance``: unknown ones are kept and ignored;
- columns of the table, and so members: unknown ones are ignored;
- fields of ``fields``: unknown ones are listed, and cannot be loaded;
- optional keys elsewhere in ``index.json``: a reader that does not know them refuses the index.

A reader of version n reads versions 1 to n. It refuses newer ones before it looks at anything else.
"""

from __future__ import annotations

from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

#: The version that is written, and the newest that is read.
FORMAT_VERSION: Final = 1


class _Version(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    wdsbench_format: int = FORMAT_VERSION


def version_problem(text: bytes) -> str | None:
    """Return why this version cannot read an ``index.json``; None if it can, or if it is not JSON.

    Args:
        text: The bytes of the index.
    """
    try:
        version = _Version.model_validate_json(text).wdsbench_format
    except ValidationError:  # the error of the whole index says more
        return None
    if version > FORMAT_VERSION:
        return (
            f"format {version}, this wdsbench reads 1 to {FORMAT_VERSION}; install a newer wdsbench"
        )
    if version < 1:
        return f"format {version}, expected 1 to {FORMAT_VERSION}; pack again"
    return None
