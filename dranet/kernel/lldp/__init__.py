"""What the switches at the other ends of cables say of themselves (LLDP, IEEE 802.1AB)."""
