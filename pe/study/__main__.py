"""``python -m pe.study NAME``: the same as ``pe study NAME``."""

import sys

from pe.cli import main

if __name__ == "__main__":
    sys.exit(main(["study", *sys.argv[1:]]))
