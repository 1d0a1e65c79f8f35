"""The framing that the runtime room and the testbed share: NRI's mux and ttrpc.

Blocking sockets and bytes; it knows neither NRI's messages nor what they mean.
"""
