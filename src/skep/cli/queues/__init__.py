"""``skep queues``: share groups as queues. Each command stands in a module, ``queue_commands`` lists them."""
