"""The Kubernetes objects that are derived from the code: admission policies and the data of the chart.

The modules do no I/O except reading the sources in `charts/dranet/`; `tools/pages/reference.py` writes the
results."""
