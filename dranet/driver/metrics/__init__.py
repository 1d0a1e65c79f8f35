"""The metrics of devices, pods and services, read when they are scraped and never at idle."""
