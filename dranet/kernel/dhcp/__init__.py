"""IPv4 leases from a DHCP server (RFC 2131): ``client`` takes, renews and releases one on one link.

``message`` is the codec, ``wire`` the frames and the socket. They know neither claims nor when to renew. Why
the driver has its own client: ``docs/decisions/017-dhcp-client.md``. ``KernelError`` also means that the
kernel refused, or that the link is down or gone.
"""
