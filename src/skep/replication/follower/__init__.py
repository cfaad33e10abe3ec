"""The follower side of replication: fetchers, truncation, throttling."""
