"""DraNet's own programs, from its Go module: its webhook client, and the provider of its end-to-end tests."""
