"""``python -m wdsbench``: the ``wdsbench`` program."""

from wdsbench.cli.main import main

if __name__ == "__main__":
    main()
