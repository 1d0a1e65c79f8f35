"""Captures and support bundles without what identifies their owner."""
