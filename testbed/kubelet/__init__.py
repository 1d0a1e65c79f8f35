"""The kubelet stand-in: finds drivers in the registration folder, prepares claims, runs pods, cleans up."""
