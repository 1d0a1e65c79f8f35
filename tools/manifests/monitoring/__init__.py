"""What Prometheus and Grafana are told of the driver: rules, alerts with their runbooks, the dashboard.

Declared here and nowhere else; `make docs` writes `charts/dranet/files/monitoring/` and `docs/user/alerts.md`
of it. Tests hold each name against the metrics that the driver has, and let Prometheus evaluate each
expression (docs/decisions/047-alerts.md).
"""
