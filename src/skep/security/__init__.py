"""Layer 4: who a client is and what it may do: authentication, ACLs, quotas, audit."""
