"""Kubernetes objects as the API server sends them: JSON, checked by :mod:`dranet.desk.kubeapi.shapes`."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
