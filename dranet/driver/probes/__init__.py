"""The probe port: liveness, readiness, metrics and the status page."""
