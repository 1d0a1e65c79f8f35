"""IPv4 leases from a DHCP server (RFC 2131). The client knows neither claims nor when to renew. Why the
driver has its own: ``docs/decisions/017-dhcp-client.md``."""
