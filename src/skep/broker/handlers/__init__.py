"""One module per API, named after it. ``handle`` returns the response, ``refuse`` one with an error code."""
