"""``python -m dranet``."""

import sys

from dranet.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
