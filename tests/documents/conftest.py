"""What pages say is run in private trees, as the testbed's own tests are."""

from __future__ import annotations

from tests.testbed.conftest import pytest_configure, pytest_pyfunc_call

__all__ = ["pytest_configure", "pytest_pyfunc_call"]
