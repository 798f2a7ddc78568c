"""The one kind of error that is the user's to mend. Apart from `types`, so that it can be named without torch."""


class UserError(ValueError):
    """What a user typed or gave us is wrong: one sentence with the problem and the fix, exit code 2."""
