"""Prepared claims on disk; ``claim_store`` is the interface."""
