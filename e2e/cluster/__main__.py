"""``python -m e2e.cluster``: build the programs of a real cluster, start one to play with, end it."""

from e2e.cluster.command import main

raise SystemExit(main())
