"""Pseudo file systems: sysfs, procfs, sysctls and configfs."""
