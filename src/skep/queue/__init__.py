"""Queues for Python programs: functions that are called with records, requests that wait for their answers."""
