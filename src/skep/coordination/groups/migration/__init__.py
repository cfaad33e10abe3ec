"""Groups that change from one protocol to the other while they have members (KIP-848)."""
