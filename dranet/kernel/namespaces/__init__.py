"""Network namespaces: enter, identify and find them, and read what is inside."""
