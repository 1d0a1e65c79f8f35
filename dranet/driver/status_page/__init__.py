"""The page of a node: what the driver knows of it, in a browser.

``content`` is what it shows, ``source`` finds that out, ``document`` writes it down. Nothing of it but
``source`` is loaded before somebody asks.
"""
