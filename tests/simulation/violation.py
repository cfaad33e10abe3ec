"""What a schedule ends with when it finds something."""


class Violation(AssertionError):
    """A promise was broken."""


class Excused(Exception):
    """Records are lost, and no rule could have kept them: nobody could know that who was elected had lost them."""
