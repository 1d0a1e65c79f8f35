"""Decides what a pod asked for: claim -> selections -> config -> plan -> status. Pure."""
