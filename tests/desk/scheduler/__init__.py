"""The real scheduler against our allocator: generated pairs of slices and claims, given to both."""
