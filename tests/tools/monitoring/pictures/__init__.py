"""Pictures of the dashboards for the documentation: their queries, Prometheus' answers, our own drawing.

Grafana itself is in no registry that the tests may use; only its layout and colours are followed.
"""
