"""A request refused: what the provider says, before a profile gives it its shape.

Raised by the rule modules, shaped by `profiles`, answered and recorded by the app.
"""

from __future__ import annotations

from typing import Literal, NoReturn, TypeAlias

from tidegate.simulator.jsontext import JsonObject

Kind: TypeAlias = Literal["rule", "body", "auth", "path", "overflow", "output_limit", "size", "script"]


class Refusal(Exception):
    """One refusal. `rule` and `body` refusals count as violations; `overflow` ones are counted by themselves, and
    `script` ones are faults."""

    def __init__(
        self,
        message: str,
        *,
        rule: str,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        code: str | int | None = None,
        kind: Kind = "rule",
        details: JsonObject | None = None,
        shaped: JsonObject | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.rule = rule
        """Short name of the rule that was broken, like `call-without-result`."""
        self.status = status
        self.type = type
        self.param = param
        self.code = code
        self.kind: Kind = kind
        self.details = details
        self.shaped = shaped
        """The whole body where the profile has one of its own."""
        self.headers = headers or {}


def refuse(
    message: str, *, rule: str, param: str | None = None, code: str | None = None, status: int = 400
) -> NoReturn:
    """A broken rule, with a 400 unless the API has another status for it."""
    raise Refusal(message, rule=rule, param=param, code=code, status=status)
