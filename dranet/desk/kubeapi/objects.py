"""Kubernetes objects as the API server sends them: JSON, checked by :mod:`dranet.desk.kubeapi.shapes`."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]

MAX_RESULTS = 32
"""Devices that a claim may get (``AllocationResultsMaxSize``)."""
MAX_ENTRIES = 32
"""Requests, constraints, configs, selectors and results of a claim, each."""
MAX_ALTERNATIVES = 8
"""Prioritised alternatives of a request (``FirstAvailableDeviceRequestMaxSize``)."""
