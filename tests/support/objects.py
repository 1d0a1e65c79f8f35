"""Kubernetes objects that many tests need, as plain dictionaries: what a user would write."""

from __future__ import annotations

from typing import Any


def device_class(name: str, expression: str, **spec: object) -> dict[str, Any]:
    """A DeviceClass with one selector; ``spec`` has what stands beside it, as ``config``."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"selectors": [{"cel": {"expression": expression}}], **spec},
    }
