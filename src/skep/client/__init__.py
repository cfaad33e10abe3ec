"""Layer 3: clients of a broker. Blocking ones for tools, commands and Spark; ``peer`` between brokers, on the loop."""
