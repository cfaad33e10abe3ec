"""One file per API, named after it; each gives ``handle`` (the answer) and ``refuse`` (the answer that is an error)."""
