"""Reports to users: claim status and Events."""
