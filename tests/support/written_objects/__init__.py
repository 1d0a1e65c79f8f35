"""Judges what the driver wrote to the API server stand-in, in any test: schemas, limits, permissions."""
