"""The nouns of the house: frozen structs without I/O, shared by every room.

msgspec encodes and decodes those that are kept on disk, so that each is declared once. Nothing here knows
netlink, gRPC, HTTP or the clock.
"""
