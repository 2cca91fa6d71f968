"""``python -m pe``: the ``pe`` command."""

import sys

from pe.cli import main

if __name__ == "__main__":
    sys.exit(main())
