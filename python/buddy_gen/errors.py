"""The one exception that every part of buddy_gen raises for a user's mistake or a failed step."""

from __future__ import annotations


class BuddyError(Exception):
    """A failure that the user can act on; its message is one sentence: what, where, what to do."""
