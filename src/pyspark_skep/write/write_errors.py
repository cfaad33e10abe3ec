"""What keeps the driver from making written rows count."""


class CommitFailed(Exception):
    """What tasks have written cannot be made visible, or not yet. The message says what is to be done."""


class RowsLost(CommitFailed):
    """Rows of a decided epoch are neither committed nor in the log any more."""
