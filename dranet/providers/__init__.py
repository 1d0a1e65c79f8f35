"""Providers: programs outside the driver that know more about devices than the kernel does."""
