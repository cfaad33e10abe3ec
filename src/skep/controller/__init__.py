"""Layer 4: places replicas and elects leaders; pure functions decide, and one broker writes their decisions."""
