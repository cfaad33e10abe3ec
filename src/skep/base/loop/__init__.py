"""The event loop: work in slices, supervised tasks, thread pools, and the watch over delays."""
