"""Packages of the host's own Debian-like release, unpacked and never installed."""
