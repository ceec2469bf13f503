"""Image files in: TIFF (tifffile, imagecodecs), PNG and JPEG (Pillow), as channels of pixels.

A file is checked when it is opened, and its pixels when they are read; an error names the file,
what was found and the remedy. Of a TIFF file only the strips and tiles are decoded that hold
requested pixels, one at a time; PNG and JPEG are decoded whole. Nothing here imports torch.
"""
