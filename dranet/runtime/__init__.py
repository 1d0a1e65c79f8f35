"""The container runtime: NRI hooks (containerd, CRI-O) and CDI spec files."""
