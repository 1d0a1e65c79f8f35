"""Shared by the tests of the end-to-end suite: test functions that run in a private tree of their own."""

from __future__ import annotations

from tests.testbed.conftest import pytest_configure, pytest_pyfunc_call

__all__ = ["pytest_configure", "pytest_pyfunc_call"]  # the marker private_tree
