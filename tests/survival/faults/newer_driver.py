"""A driver of the next version: its records are of a later shape. Run as the driver, with its options; never
imported, because it changes what every other module reads."""

from __future__ import annotations

import sys

from dranet.model import plan

if __name__ == "__main__":
    plan.RECORD_VERSION += 1
    from dranet.cli.main import main

    sys.exit(main(["run", *sys.argv[1:]]))
