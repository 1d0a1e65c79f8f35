"""The nouns of the house: frozen values without I/O, shared by every room.

They are frozen structs; what has to reach the disk is written and read by ``record_json``, so that a
noun is declared once. Nothing here knows netlink, gRPC, HTTP or the clock.
"""
