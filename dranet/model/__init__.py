"""The nouns of the house: frozen values without I/O, shared by every room.

They are plain dataclasses; what has to reach the disk is serialised by pydantic's ``TypeAdapter``, so
that a noun is declared once. Nothing here knows netlink, gRPC, HTTP or the clock.
"""
