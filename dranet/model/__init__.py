"""The nouns of the house: frozen structs without I/O, shared by every room."""
