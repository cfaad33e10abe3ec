"""``skep sql``: queries over topics."""
