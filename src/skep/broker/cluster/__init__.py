"""The broker as a member of the cluster: registration, departed brokers, coordinators, producer ids."""
