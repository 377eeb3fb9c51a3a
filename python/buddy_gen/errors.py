"""The one exception that a user's mistake or a broken input raises."""

from __future__ import annotations

__all__ = ["BuddyError"]


class BuddyError(Exception):
    """One sentence that says what is wrong, where, and what to do.

    Every part of buddy-gen raises it for bad input; the command line prints the sentence and exits with 1. Anything
    else that escapes is a bug of ours.
    """
