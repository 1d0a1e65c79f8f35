"""What a scrape shows of devices, pods and the driver's parts: read when asked for, never at idle."""
