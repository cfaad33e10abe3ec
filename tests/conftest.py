"""Hypothesis without its deadline per example, for a busy machine is no reason to fail; and the fixtures of Skep."""

from importlib.metadata import entry_points

from hypothesis import settings

settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

# Once only: where Skep is installed its fixtures are there already, and pytest refuses a plugin under two names.
_is_installed = any(point.value == "skep.pytest_plugin" for point in entry_points(group="pytest11"))
pytest_plugins = [] if _is_installed else ["skep.pytest_plugin"]
