"""The scenarios of the testbed, walked on a cluster that is known by its kubeconfig alone (``make e2e``)."""
