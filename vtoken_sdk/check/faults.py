"""How a check ends when it does not simply pass, and where in the user's file."""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path


class CheckFailed(AssertionError):
    """A policy breaks a rule. The message says what was seen, the likely mistake, and the mend.

    cause: the check whose business this is, where another one stumbled over it.
    """

    def __init__(self, message: str, *, cause: str | None = None) -> None:
        super().__init__(message)
        self.cause = cause


class CheckSkipped(Exception):
    """The check does not apply to this policy. The message says why."""


class CheckWarning(UserWarning):
    """Something that breaks no rule, but that an author should know."""


def own_line(error: BaseException, cls: type) -> str:
    """' (mine.py:12: the line)': where in the policy's file an error arose; else the last line outside of this package; or nothing."""
    try:
        own = inspect.getfile(cls)
    except (TypeError, OSError):  # a class typed into a session has no file
        own = ""
    frames = traceback.extract_tb(error.__traceback__)
    package = str(Path(__file__).parents[1])
    found = [f for f in frames if f.filename == own] or [f for f in frames if not f.filename.startswith(package)]
    return f" ({Path(found[-1].filename).name}:{found[-1].lineno}: {found[-1].line})" if found else ""
