"""The API server stand-in: HTTP, storage, validation, watches, server-side apply. Knows no driver."""
