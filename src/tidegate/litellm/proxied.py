"""The hook of LiteLLM's proxy: whoever names it in the proxy's config has every chat kept inside its window.

Knows LiteLLM's callbacks. LiteLLM lets none of them make a failed call again, nor know a call's model and credential
before a deployment is chosen: so the hook puts Tidegate around the function that calls the deployment.
"""

from __future__ import annotations

import os
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from tidegate.client.house import Given
from tidegate.litellm.asking import TOLD
from tidegate.litellm.installed import install, is_installed


class TidegateHook(CustomLogger):  # type: ignore[misc]
    """For `litellm_settings: callbacks:` of LiteLLM's proxy, as `tidegate.litellm.hook`, or an instance with settings
    of its own in a module next to the config.

    Conversations are replayed and compacted before the deployment is called, and recovered after a refusal. What
    clients of the proxy say in `x-tidegate-*` headers holds. Raises `ConfigError` for settings that are not allowed.
    """

    def __init__(self, *, config: str | os.PathLike[str] | None = None, settings: Given | None = None) -> None:
        super().__init__()
        self._given: dict[str, Any] = {"config": config, "settings": settings}
        install(**self._given)

    async def async_pre_call_hook(
        self, user_api_key_dict: object, cache: object, data: dict[str, Any], call_type: str
    ) -> dict[str, Any] | None:
        """Takes along what the proxy's client says to Tidegate, to where the deployment is called."""
        if not is_installed():
            install(**self._given)
        headers = (data.get("proxy_server_request") or {}).get("headers") or {}
        told = {name.lower(): value for name, value in headers.items() if name.lower().startswith("x-tidegate-")}
        if not told:
            return None
        key = "metadata" if isinstance(data.get("metadata"), dict) else "litellm_metadata"
        data[key] = {**(data.get(key) or {}), TOLD: told}
        return data
