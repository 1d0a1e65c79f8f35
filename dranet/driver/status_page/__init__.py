"""The status page (statusz) of the node.

``content`` is what it shows, ``source`` collects it, ``document`` renders it. Until the first request only
``source`` and ``content`` are loaded.
"""
