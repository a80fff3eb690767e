"""The one exception whose text is written for the person at the keyboard."""


class UserError(Exception):
    """Something a user gave or lacks: the message says what was wrong, which value or file, and what to do."""
