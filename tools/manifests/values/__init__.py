"""The values of the Helm chart, declared once.

``values.yaml``, ``values.schema.json`` and ``docs/user/values.md`` are made from these declarations, so each
value has its help in all of them, and none accepts what another refuses.
"""
