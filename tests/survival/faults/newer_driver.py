"""A driver of the next version: its records are of a later shape. Run as the driver, with its options."""

from __future__ import annotations

import sys

from dranet.model import plan

plan.RECORD_VERSION += 1

if __name__ == "__main__":
    from dranet.cli.main import main

    sys.exit(main(["run", *sys.argv[1:]]))
