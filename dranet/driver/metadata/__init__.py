"""What a pod finds about its devices in a file (KEP-5304)."""
