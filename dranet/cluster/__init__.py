"""The room of the API server: a small JSON client, and what the driver does with it: it publishes this node's
ResourceSlices, fetches claims, reports device status and writes Events. API JSON does not leave this room."""
