"""Errors that end a command, each with the exit code that scripts outside rely on.

A person can cause every one of them, so the message is one sentence that names the file, key or
value and states what was meant; `toolkit.cli` and `launch/train.py` print it without a traceback.
"""


class ToolkitError(Exception):
    """Base of all errors shown as one sentence; `exit_code` is what the process returns."""

    exit_code = 2


class UsageError(ToolkitError):
    """Wrong usage, configuration or input."""

    exit_code = 2


class UntrustedError(ToolkitError):
    """A checkpoint or shard whose bytes are not what was written."""

    exit_code = 3


class HangError(ToolkitError):
    """A rank did not answer within the time limit."""

    exit_code = 4


class OutOfMemoryError(ToolkitError):
    """The device ran out of memory."""

    exit_code = 5


class NonFiniteError(ToolkitError):
    """The loss or the gradient norm is NaN or infinite."""

    exit_code = 6


class SaveError(ToolkitError):
    """A checkpoint or a record could not be written; earlier checkpoints are as they were."""

    exit_code = 3


class Preempted(ToolkitError):
    """A signal asked for the end; the state was saved, and the next start resumes."""

    exit_code = 75


class ReaderGone(ToolkitError):
    """Nobody reads standard output any more, which is reported to nobody; the code is a shell's."""

    exit_code = 141
