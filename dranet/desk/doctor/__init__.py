"""What there is to find out about peers, node and settings: ``/readyz?verbose``, ``dranet doctor``."""
