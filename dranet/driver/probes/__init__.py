"""What the driver tells of itself: whether it is ready, and its metrics."""
