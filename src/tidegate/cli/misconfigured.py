"""The error of a command whose settings are wrong.

Knows its exit status. Raised by the commands that read settings.
"""

import click


class Misconfigured(click.ClickException):
    """A wrong setting, shown without a stack trace."""

    exit_code = 2
