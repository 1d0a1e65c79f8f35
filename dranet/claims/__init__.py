"""The room that decides what a pod asked for: claim -> selections -> config -> plan -> status.

Pure: it gets a ``Claim``, devices and the state of their links, and returns values or a ``ClaimError`` that
names every mistake. It must not know the kernel, the API server, the store or the clock; the corridor
(``driver.prepare``, ``driver.hooks``) carries values in and out.
"""
