"""The metadata store in ZooKeeper, for brokers on several machines."""
