"""The errors that keep the driver from committing written rows."""


class CommitFailed(Exception):
    """What tasks have written cannot be committed, or not yet. The message says what to do."""


class RowsLost(CommitFailed):
    """Rows of a decided epoch are neither committed nor still in the log."""
