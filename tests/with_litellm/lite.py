"""The chat agent of the gateway's tests, calling `litellm.completion` and its asynchronous twin."""

from __future__ import annotations

from typing import Any

import litellm
from agents import Chat, Json, Turn

litellm.suppress_debug_info = True


def headers(response: Any) -> dict[str, str]:
    """What is told of an answer, as LiteLLM keeps it."""
    return dict(response._hidden_params.get("additional_headers") or {})


class Lite(Chat):
    """Calls `caller`: litellm itself, or a Router."""

    caller: Any = litellm
    prefix = "openai/"
    root = "/v1"

    def arguments(self) -> Json:
        there = {"api_base": self.base + self.root, "api_key": self.key} if self.prefix else {}
        named = {"model": f"{self.prefix}{self.model}", "stream": self.stream, "max_retries": 0}
        return {**self.request(), **there, **named}

    def _whole(self, response: Any, chunks: list[Any] | None) -> Turn:
        whole = litellm.stream_chunk_builder(chunks) if chunks is not None else response
        return self.take(self._turn(whole.choices[0].message, headers(response)))

    def ask(self) -> Turn:
        response = self.caller.completion(**self.arguments())
        return self._whole(response, list(response) if self.stream else None)

    async def ask_async(self) -> Turn:
        response = await self.caller.acompletion(**self.arguments())
        return self._whole(response, [chunk async for chunk in response] if self.stream else None)


class Claude(Lite):
    """The same, through LiteLLM to Anthropic's API."""

    prefix, root = "anthropic/", ""

    def __init__(self, base: str, **how: Any) -> None:
        super().__init__(base, model="claude-sonnet-4-5", **how)


class Routed(Lite):
    """The same through LiteLLM's Router."""

    prefix = ""

    def __init__(self, base: str, **how: Any) -> None:
        super().__init__(base, **how)
        there = {"model": f"openai/{self.model}", "api_base": f"{base}/v1", "api_key": self.key}
        deployment = {"model_name": self.model, "litellm_params": there}
        self.caller = litellm.Router(model_list=[deployment], num_retries=0)
