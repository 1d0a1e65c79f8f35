"""Examples run in private trees, as the testbed's own tests do."""

from __future__ import annotations

from tests.testbed.conftest import pytest_configure, pytest_pyfunc_call

__all__ = ["pytest_configure", "pytest_pyfunc_call"]
