"""``python -m tests.data``: write again what follows from descriptions and code. See README.md."""

from __future__ import annotations

import argparse

from dranet.model.capture import encode_capture
from tests.data.gpu_slices import FILES, slices_file, slices_text
from tests.data.layouts import DESCRIBED, FOLDER, capture_file, expectation_text, expected_file


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.data", description=__doc__)
    parser.add_argument("--captures", action="store_true", help="write the described captures, too")
    parser.add_argument("layouts", nargs="*", help="only these (default: all)")
    options = parser.parse_args()
    if options.captures:
        for layout in options.layouts or DESCRIBED:
            capture_file(layout).parent.mkdir(exist_ok=True)
            capture_file(layout).write_text(encode_capture(DESCRIBED[layout]()), encoding="utf-8")
    for layout in options.layouts or sorted(file.parent.name for file in FOLDER.glob("*/capture.json")):
        expected_file(layout).write_text(expectation_text(layout), encoding="utf-8")
        for name in FILES.get(layout, ()):
            slices_file(layout, name).write_text(slices_text(layout, name), encoding="utf-8")


if __name__ == "__main__":
    main()
