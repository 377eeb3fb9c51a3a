"""A JSON body, read field by field: each with its type and range, and nothing unknown left over."""

from __future__ import annotations

import json
import math
from collections.abc import Collection
from typing import Any

from buddy_gen.serve.api_error import ApiError, invalid

__all__ = ["Fields", "checked_text", "parse_object"]

_NAMES: dict[type, str] = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "null"}


def kind_of(value: object) -> str:
    return _NAMES.get(type(value), "a number")


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in a body.

    Raises:
        ApiError: It is none, or no UTF-8.
    """
    try:
        value = json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise invalid(f"The body is not UTF-8: byte {error.start} is wrong.", code="invalid_encoding") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise invalid(f"The body is not JSON: {error.msg} at {where}.", code="invalid_json") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise invalid(f"The body is not JSON that can be read: {reason}.", code="invalid_json") from None
    if not isinstance(value, dict):
        raise invalid(f"The body must be a JSON object, not {kind_of(value)}.", code="invalid_json")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def checked_text(text: str, param: str) -> str:
    """The text, which must be Unicode: JSON can spell half a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{param} holds half of a surrogate pair, which is no character.", param) from None
    return text


class Fields:
    """The members of an object. A member that is null counts as not given."""

    def __init__(self, members: dict[str, Any], where: str = "") -> None:
        self._members = members
        self._where = where
        self._asked: set[str] = set()

    def path(self, name: str) -> str:
        return f"{self._where}.{name}" if self._where else name

    def take(self, name: str) -> Any:
        """The value as it is; None if it is not given."""
        self._asked.add(name)
        return self._members.get(name)

    def require(self, name: str) -> Any:
        value = self.take(name)
        if value is None:
            path = self.path(name)
            raise invalid(f"The parameter {path} is missing.", path, "missing_required_parameter")
        return value

    def text(self, name: str, value: Any = None) -> str:
        """A string; `value` where it has been taken already."""
        path = self.path(name)
        value = self.require(name) if value is None else value
        if not isinstance(value, str):
            raise self.wrong_type(path, "a string", value)
        return checked_text(value, path)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.take(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong_type(self.path(name), "a boolean", value)
        return value

    def integer(self, name: str, low: int, high: int) -> int | None:
        value = self.take(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong_type(self.path(name), "an integer", value)
        self._check_range(name, value, low, high)
        return value

    def number(self, name: str, default: float, low: float, high: float) -> float:
        value = self.take(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong_type(self.path(name), "a number", value)
        self._check_range(name, value, low, high)
        return float(value)

    def refuse(self, name: str, reason: str, allowed: Collection[Any] = ()) -> None:
        """For what this server does not do: anything but null and `allowed` is an error."""
        value = self.take(name)
        if value is None or any(value == harmless and type(value) is type(harmless) for harmless in allowed):
            return
        path = self.path(name)
        raise invalid(f"{path} is not supported: {reason}.", path, "unsupported_parameter")

    def ignore(self, *names: str) -> None:
        """For what makes no difference here."""
        self._asked.update(names)

    def finish(self) -> None:
        """
        Raises:
            ApiError: There are members that nobody asked for.
        """
        for name in self._members:
            if name not in self._asked:
                path = checked_name(self.path(name))
                raise invalid(f"The parameter {path} is unknown.", path, "unknown_parameter")

    @staticmethod
    def wrong_type(path: str, wanted: str, value: object) -> ApiError:
        return invalid(f"{path} must be {wanted}, not {kind_of(value)}.", path, "invalid_type")

    def _check_range(self, name: str, value: float, low: float, high: float) -> None:
        if not low <= value <= high:
            path = self.path(name)
            shown = value if isinstance(value, float) or abs(value) < 10**20 else "a huge number"
            limits = f"at least {low}" if math.isinf(high) else f"{low} to {high}"
            raise invalid(f"{path} is {shown}; it must be {limits}.", path)


def checked_name(name: str) -> str:
    """A name that can be shown: a short one, of whole characters."""
    whole = name.encode("utf-8", "replace").decode()
    return whole if len(whole) <= 64 else whole[:64] + "..."
