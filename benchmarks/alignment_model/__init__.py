"""What is alignment worth? A model of jobs on one node, with devices chosen at random or near each other.

No measurement: machines are the layouts of ``tests/data``, bandwidths are published figures of others.
``python -m benchmarks alignment_model`` runs it and writes ``benchmarks/results/alignment_model.json``,
``docs/reference/alignment-gain.md`` and its picture; the same seed gives the same files.
"""
