"""Layer 4: the coordinators of groups, transactions and share states, replayed from the records they write."""
