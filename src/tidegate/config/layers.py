"""Values as they were given: by a file, by variables, by flags; each with its key and where it came from.

Knows how keys are spelled in each place; not what they allow. Called by `config.load`.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from tidegate.config.allowed import is_path
from tidegate.config.settings import KEYS, SECTIONS, TABLES, CompactorSettings, ModelSettings

Key: TypeAlias = tuple[str, ...]

PREFIX: Final = "TIDEGATE_"
SHORT: Final[Mapping[str, Key]] = {
    "host": ("server", "host"),
    "port": ("server", "port"),
    "workers": ("server", "workers"),
    "log_level": ("server", "log_level"),
    "upstream": ("upstream", "url"),
}
"""Keys with a name of their own: `--port`, `TIDEGATE_PORT`."""
CONFIG_VARIABLE: Final = "TIDEGATE_CONFIG"

# Kubernetes gives every container variables of a Service's name, so a Service called "tidegate" makes these.
_KUBERNETES: Final = re.compile(r"TIDEGATE_(SERVICE_(HOST|PORT)(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)")
_KUBERNETES_PORT: Final = re.compile(r"(tcp|udp|sctp)://")
_REFERENCE: Final = re.compile(r"\$\$\{|\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")


IN_CODE: Final = "`settings`"
"""How what is given in code is called: by the argument that takes it."""


class ConfigError(Exception):
    """The configuration is wrong. Each line names the key, where it was given, and what is allowed; never a secret."""


@dataclass(frozen=True, slots=True)
class Given:
    """One value as it was given."""

    key: Key
    value: object
    origin: str
    """The file, the variable or the flag."""
    written: object
    """The value before `${…}` was replaced: what may be shown of it."""


def from_file(path: Path, environ: Mapping[str, str]) -> Iterator[Given]:
    """The values of a TOML file. `${NAME}` in a text is the variable, `${NAME:-text}` has a default, `$${` is itself.

    Relative paths start at the file. Raises `ConfigError`.
    """
    for key, written in _walk(_read(path), path):
        value = _replaced(written, environ, lambda text, key=key: f"{path}: {'.'.join(key)}: {text}")
        if isinstance(value, str) and value and key[:2] in KEYS and is_path(KEYS[key[0], key[1]]):
            value = str(path.absolute().parent / Path(value).expanduser())
        yield Given(key, value, str(path), written)


def from_environ(environ: Mapping[str, str]) -> Iterator[Given]:
    """The values of `TIDEGATE_SECTION__KEY`, with one underscore where that is clear, and of the short names.

    An empty variable is no variable. Raises `ConfigError`.
    """
    given = []
    for name, value in environ.items():
        if not name.upper().startswith(PREFIX) or name.upper() == CONFIG_VARIABLE or not value.strip():
            continue
        if _KUBERNETES.fullmatch(name) or (name == "TIDEGATE_PORT" and _KUBERNETES_PORT.match(value)):
            continue
        rank, key = _key_of_variable(name)
        shaped = _shaped(key, value)
        given.append((rank, name, Given(key, shaped, name, value)))
    yield from (item for _, _, item in sorted(given, key=lambda entry: entry[:2]))


def from_tables(tables: Mapping[str, Any]) -> Iterator[Given]:
    """The values of tables given in code, shaped as a file's. Raises `ConfigError`."""
    for key, value in _walk(tables, IN_CODE):
        yield Given(key, value, IN_CODE, value)


def from_flags(flags: Mapping[str, object]) -> Iterator[Given]:
    """The values of a command's flags, by dotted key or short name; None is a flag that was not given.

    Raises `ConfigError`.
    """
    names = {key: short for short, key in SHORT.items()}
    for name, value in flags.items():
        if value is None:
            continue
        key = SHORT.get(name) or tuple(name.split("."))
        flag = "--" + names.get(key, name).replace("_", "-")
        _check(key, flag, spelled=".".join)
        yield Given(key, _shaped(key, value), flag, value)


def variable(key: Sequence[str]) -> str:
    """The variable of a key."""
    return PREFIX + "__".join(key).upper()


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ConfigError(f"{path}: {exc.strerror or exc}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: is not TOML: {exc}{_unquoted(path, str(exc))}") from None


def _unquoted(path: Path, problem: str) -> str:
    """What to write where the name of a table stands without its quotes: `[models.qwen3*]`."""
    at = re.search(r"\(at line (\d+)", problem)
    line = path.read_text(encoding="utf-8").splitlines()[int(at[1]) - 1].strip() if at else ""
    name = re.fullmatch(r"\[(\w+)\.([^]\"'\s]*[^]\"'\s\w.-][^]\"'\s]*)\](\s*#.*)?", line)
    return f'; quote such a name: [{name[1]}."{name[2]}"]' if name else ""


def _walk(data: Mapping[str, Any], path: Path | str) -> Iterator[tuple[Key, Any]]:
    for section, table in data.items():
        if section not in SECTIONS and section not in TABLES:
            _unknown((section,), str(path), spelled=".".join)
        for key, value in _table(table, section, path).items():
            if section not in TABLES:
                _check((section, key), str(path), spelled=".".join)
                yield (section, key), value
                continue
            inner = _table(value, f"{section}.{key}", path)
            if section == "providers":
                yield from _leaves(("providers", key), inner)
                continue
            for name, figure in inner.items():
                if isinstance(figure, dict):
                    quoted = f'[{section}."{key}.{name}"]'
                    raise ConfigError(f"{path}: {section}.{key}.{name}: quote names with dots: {quoted}")
                _check((section, key, name), str(path), spelled=".".join)
                yield (section, key, name), figure


def _table(value: object, name: str, path: Path | str) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise ConfigError(f"{path}: {name}: should be a table: [{name}]")


def _leaves(key: Key, table: Mapping[str, Any]) -> Iterator[tuple[Key, Any]]:
    if not table:
        yield key, {}
    for name, value in table.items():
        if isinstance(value, dict):
            yield from _leaves((*key, name), value)
        else:
            yield (*key, name), value


def _replaced(value: Any, environ: Mapping[str, str], explain: Any) -> Any:
    """The value with every `${NAME}` of its texts replaced."""
    if isinstance(value, list):
        return [_replaced(item, environ, explain) for item in value]
    if isinstance(value, dict):
        return {name: _replaced(item, environ, explain) for name, item in value.items()}
    if not isinstance(value, str):
        return value

    def one(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name is None:
            return "${"
        found = environ.get(name) or default
        if found is None:
            raise ConfigError(explain(f"the variable {name} is not set (`${{{name}:-text}}` gives a default)"))
        return found

    return _REFERENCE.sub(one, value)


def _key_of_variable(name: str) -> tuple[int, Key]:
    """The key that a variable names, after how exactly it does: an exact spelling wins over a short one."""
    rest = name[len(PREFIX) :]
    if rest.lower() in SHORT:
        return 0, SHORT[rest.lower()]
    if "__" in rest:
        section, *names = rest.split("__")
        key: Key = (section.lower(), *(part.lower() for part in names))
        if key[0] in TABLES and len(names) > 1:
            chosen = names[0].lower() if names[0].isupper() else names[0]
            key = (key[0], chosen, *key[2:])
        _check(key, name, spelled=variable)
        return 2, key
    for section, key_name in KEYS:
        if rest.lower() == f"{section}_{key_name}":
            return 1, (section, key_name)
    if near := get_close_matches(rest.lower(), (*SHORT, "config"), 1, cutoff=0.75):
        raise ConfigError(f"unknown variable {name}; did you mean {PREFIX}{near[0].upper()}?")
    return _unknown(tuple(rest.lower().split("_", 1)), name, spelled=variable)


def _shaped(key: Key, value: object) -> object:
    """A text from outside a file: a path may start with `~`, a provider's field may be JSON."""
    if not isinstance(value, str):
        return value
    if key[0] == "providers":
        try:
            parsed = json.loads(value)
        except ValueError:
            return value
        return value if parsed is None else parsed
    if value and key[:2] in KEYS and is_path(KEYS[key[0], key[1]]):
        return os.path.expanduser(value)
    return value


def _check(key: Key, origin: str, *, spelled: Any) -> None:
    """Raises `ConfigError` for a key that does not exist."""
    match key:
        case ("models", _, name) if name in ModelSettings.model_fields:
            return
        case ("compactors", _, name) if name in CompactorSettings.model_fields:
            return
        case ("providers", _, _, *_):
            return
        case _ if key in KEYS:
            return
    _unknown(key, origin, spelled=spelled)


def _unknown(key: Key, origin: str, *, spelled: Any) -> NoReturn:
    shown = spelled(key)
    head = f"unknown key {shown} in {origin}" if shown != origin else f"unknown variable {origin}"
    raise ConfigError(f"{head}; {_instead(key, spelled)}")


def _instead(key: Key, spelled: Any) -> str:
    """What may have been meant, else what there is."""
    if key[0] == "models" and len(key) > 1:
        near = get_close_matches(key[-1], ModelSettings.model_fields, 1)
        if near and len(key) == 3:
            return f"did you mean {spelled((*key[:2], near[0]))}?"
        return f"allowed: models.NAME with {', '.join(ModelSettings.model_fields)}"
    if key[0] == "compactors" and len(key) > 1:
        return f"allowed: compactors.NAME with {', '.join(CompactorSettings.model_fields)}"
    if len(key) == 1 and (near := get_close_matches(key[0], [*SECTIONS, *TABLES], 1)):
        return f"did you mean {spelled(near)}?"
    names = {".".join(known): known for known in KEYS}
    same = [known for known in KEYS if known[1] == key[-1]]
    close = get_close_matches(".".join(key), names, 1, cutoff=0.75)
    if same or close:
        return f"did you mean {spelled(same[0] if same else names[close[0]])}?"
    if key[0] in SECTIONS:
        return f"allowed in {key[0]}: {', '.join(SECTIONS[key[0]].model_fields)}"
    return f"allowed: {', '.join((*SECTIONS, *TABLES))}"
