"""Find image files and open them."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Final

from wdsbench.errors import ImageError
from wdsbench.images.source import ImageSource

TIFF_SUFFIXES: Final = (".tif", ".tiff")
SUFFIXES: Final = (*TIFF_SUFFIXES, ".png", ".jpg", ".jpeg")
#: Lists, in the folder of the results, the images that could not be used, one JSON object a line.
FAILURES_NAME: Final = "failures.jsonl"


def is_image(path: Path) -> bool:
    """Return True if the name is that of an image file."""
    return path.suffix.lower() in SUFFIXES


def find_images(source: str) -> list[tuple[str, Path]]:
    """Return name and path of the images of a folder (at any depth) or of a pattern, by name.

    The name is the path with ``/``, relative to the folder or to the fixed part of the pattern.
    Hidden files and folders are left out.

    Raises:
        ImageError: There is no image, or the pattern matches another file.
    """
    folder = Path(source)
    if folder.is_dir():
        paths = [path for path in folder.rglob("*") if is_image(path)]
    elif folder.is_file():
        folder, paths = folder.parent, [folder]
    else:
        folder = Path(*_fixed_parts(Path(source)))
        paths = [Path(each) for each in glob.glob(source, recursive=True)]  # noqa: PTH207
    found = []
    for path in paths:
        name = path.relative_to(folder)
        if any(part.startswith(".") for part in name.parts) or not path.is_file():
            continue
        if not is_image(path):
            raise ImageError(
                f"the name ends in none of {', '.join(SUFFIXES)}; move it away or narrow the"
                " pattern",
                file=str(path),
            )
        found.append((name.as_posix(), path))
    if not found:
        raise ImageError(
            f"no image in {source!r} (working folder {Path.cwd()}); check the path, quote a"
            f" pattern, and expect files that end in {', '.join(SUFFIXES)}"
        )
    return sorted(found)


def open_image(path: Path) -> ImageSource:
    """Open an image file; ImageError if it is damaged or of a kind that cannot be packed."""
    # Imported here: a run that reads no TIFF needs neither tifffile nor its codecs.
    try:
        if path.suffix.lower() in TIFF_SUFFIXES:
            from wdsbench.images.tiff import TiffImage

            return TiffImage(path)
        from wdsbench.images.pillow_file import PillowFile

        return PillowFile(path)
    except OSError as error:
        raise ImageError(f"cannot be read: {error.strerror or error}", file=str(path)) from error


def _fixed_parts(pattern: Path) -> list[str]:
    """Return the folders of a pattern before the first that is itself a pattern."""
    fixed: list[str] = []
    for part in pattern.parts[:-1]:
        if glob.has_magic(part):
            break
        fixed.append(part)
    return fixed
