"""Groups and transactions: coordinators that are state machines, replayed from the records they write."""
