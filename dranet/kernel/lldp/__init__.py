"""What the switches at the other ends of cables announce (LLDP, IEEE 802.1AB)."""
