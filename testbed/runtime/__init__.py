"""The container runtime as the kubelet sees it (``contract``), and a stand-in that speaks NRI by itself."""
