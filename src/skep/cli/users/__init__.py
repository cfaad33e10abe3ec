"""``skep users``: users and their passwords."""
