"""``python -m e2e``: the end-to-end suite on the lane that this machine and its environment give."""

from __future__ import annotations

import sys

from e2e.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
