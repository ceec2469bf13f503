#!/usr/bin/env python3
"""Pack raw traces into shards: the same as ``wdsbench pack``.

Example:
    python tools/pack_shards.py --traces 'traces_data/*.pkl*' --scores scores.csv --out shards/
"""

import sys

from wdsbench.cli.main import main

if __name__ == "__main__":
    main(["pack", *sys.argv[1:]])
