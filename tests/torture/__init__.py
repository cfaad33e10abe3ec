"""The long fault run; see ``tests/cluster`` for what it is made of."""
