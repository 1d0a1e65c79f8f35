"""A release, made into a folder: ``make release-dry-run``, and the release workflow, which then publishes it.

docs/dev/releasing.md has the whole way. Each module makes a part; ``__main__`` combines them.
"""
