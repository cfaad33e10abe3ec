"""The messages about a name that does not exist, so that every command, client and data source says the same."""

from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], *, most: int = 3) -> str:
    """Returns the end of a message: ``; did you mean orders?`` if a known name is similar, else an empty string."""
    import difflib  # only needed for an error

    close = difflib.get_close_matches(name, list(known), n=most)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def no_such_topic(name: str, known: Iterable[str] = ()) -> str:
    return f"there is no topic '{name}'{did_you_mean(name, known)}"
