"""``skep serve`` and ``skep zookeeper``."""
