"""IPv4 leases from a DHCP server (RFC 2131): ``client`` takes, renews and releases one on one link.

``message`` is the codec, ``frame`` wraps it for Ethernet, ``wire`` is the socket, ``exchange`` the
conversation with servers, ``link`` sees that there is a link to speak on, ``lifetime`` says how long an
address lives. None of it knows claims, or when to renew. Why our own: ``docs/decisions/017-dhcp-client.md``.
"""
