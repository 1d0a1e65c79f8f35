"""``python -m tests.documents``: how many blocks there are of each kind, and which nobody has classified."""

from __future__ import annotations

import sys
from collections import Counter

from tests.documents.blocks import list_blocks
from tests.documents.kinds import classify

counts = Counter(str(classify(block) or "NOT CLASSIFIED") for block in list_blocks())
for kind, count in counts.most_common():
    sys.stdout.write(f"{count:5d}  {kind}\n")
for block in list_blocks():
    if classify(block) is None:
        first = block.text.partition("\n")[0]
        sys.stdout.write(f"{block} [{block.language}] {block.mark} {first}\n")
