"""What the Fetch handler works with: fetch sessions and fetches of followers."""
