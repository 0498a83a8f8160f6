"""The `--config` option, and the store that the settings name.

Knows how to read them and what to tell people where that fails. Called by the commands that read settings.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tidegate.cli.misconfigured import Misconfigured

if TYPE_CHECKING:
    from tidegate.config import Settings

T = TypeVar("T")

OF_THE_STORE = "Settings file that says where the store is."


def config_option(what: str = "Settings file.", default: str = "as for serve") -> Callable[[Any], Any]:
    """The option `--config FILE`, given to a command as `config_file`; `what` and `default` are its help."""
    return click.option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help=f"{what}  [default: {default}]",
    )


def loaded(config_file: Path | None) -> Settings:
    """The settings that `serve` would go by. Raises `Misconfigured`."""
    from tidegate import config

    try:
        return config.load(config_file, {}, os.environ)
    except config.ConfigError as error:
        raise Misconfigured(str(error)) from None


def store_file(settings: Settings, stays: str) -> Path:
    """Where the store is, whether it is there or not. Raises `click.ClickException` for a store that is no file:
    `stays` says of what, like `checkpoints stay`."""
    from tidegate.store import default_path

    store = settings.store
    if store.kind != "sqlite":
        raise click.ClickException(f"store.kind is {store.kind}: {stays} in the gateway's process.")
    return store.path or default_path()


def tried(work: Callable[[], T]) -> T:
    """What `work` gives. Raises `click.ClickException` for its `StoreError`."""
    from tidegate.store import StoreError

    try:
        return work()
    except StoreError as error:
        raise click.ClickException(str(error)) from None
