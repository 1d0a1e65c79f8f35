"""What became of a claim, told to users: claim status and Events."""
