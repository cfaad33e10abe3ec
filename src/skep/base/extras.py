"""How to install an extra of the package, for messages about a library that is missing."""


def how_to_install(extra: str) -> str:
    """Returns the command and where to run it: Skep is on no package index, so pip installs it from its source."""
    return f'pip install ".[{extra}]" in the folder of Skep\'s source'
