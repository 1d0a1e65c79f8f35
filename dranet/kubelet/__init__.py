"""The kubelet's room: how it finds us, what it asks of us, and what we report of our devices.

We are the server. The kubelet finds the registration socket in its registry folder, asks for the name
and endpoint, and then calls Prepare and Unprepare on the driver's own socket. This room turns the gRPC
messages of every version into ``dranet.model`` nouns and back. It knows nothing of claims beyond their
identity, of devices beyond their names, and decides nothing: its handler does.
"""
