"""The broker's side of the worker, the process that looks into records (``skep/worker``)."""
