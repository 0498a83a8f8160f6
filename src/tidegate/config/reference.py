"""The page that lists every key, made from the settings themselves.

Knows keys and words; no values. `docs/configuration.md` is what `reference()` returns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefinedType

from tidegate.config.allowed import allowed
from tidegate.config.layers import SHORT, variable
from tidegate.config.settings import SECTIONS, CompactorSettings, ModelSettings

_INTRODUCTION: Final = """\
# Configuration

Nothing has to be configured. What is set comes from three places; a later one wins, key by key:

1. a file, `tidegate.toml`: the one given with `--config` or `TIDEGATE_CONFIG`, else the one in the working directory,
   else the one in the user's configuration folder (`~/.config/tidegate/` on Linux);
2. variables, `TIDEGATE_SECTION__KEY`;
3. flags of the command.

Every command that goes by settings (`tidegate status`, `route`, `providers`, `windows`, …) searches for the file as
`tidegate serve` does, from the folder where it is called, and takes `--config` too.

An unknown key or a value that is not allowed ends the start with a message that names the key, where it was given, and
what is allowed.

A gateway that runs reads them anew at a SIGHUP (`kill -HUP PID`, all workers at once): later requests go by them, those
under way end as they began, and nothing that was learned or compacted is forgotten. Where they are wrong, or their file
is gone, those before still hold, and the log says why. Of `[server]` only `allowed_hosts`, `allowed_origins`,
`admin_key` and `log_level`, of `[upstream]` only `url` and `ask_windows` are followed, of `[store]` nothing: the log
says which changes wait for a new start. (A terminal that is closed still ends the gateway.)

In the texts of the file `${NAME}` is the value of a variable, `${NAME:-text}` has a default, and `$${` stands for `${`.
Relative paths in the file start at the file's folder. One underscore between section and key does as well
(`TIDEGATE_SERVER_PORT`), an empty variable counts as not set, and these have short names:

"""

_MODELS: Final = """\
## [models."NAME"]

What is known of a model, in tokens, and how it is compacted; wins over the provider files. NAME is a model's name or a
pattern (`"qwen3*"`), with or without `provider/`. Names with a dot need quotes. In a variable:
`TIDEGATE_MODELS__NAME__WINDOW`.

Nothing raises what is set here: a window may be smaller than the model's on purpose. A limit that a refusal has shown
lowers it. Where nothing is set, [several sources](classifier.md#windows) are tried in turn; `tidegate windows` shows
what was learned. `tidegate route PROVIDER/MODEL --dialect API` shows which ways of compacting come of all this, and why
not the others.

From `policy` to `estimator` the keys are those of `[compaction]`, for this model alone: what is set here counts for
more than what is set for its provider or for all. A `policy` begins anew: of what is set more generally only `enabled`,
`on_overflow` and `prepare` still count then. [Policies](policies.md) says what each is.

`context-edit` is in no built-in list. Where you name it, Anthropic is asked within the client's own request to leave
old tool results out (and old thinking, where the model does not bind it), as long as that keeps the request below the
threshold and the client does not manage its context itself; then the other ways have their turn. The model sees nothing
of what is left out, until a later compaction sums it up. `elide` does the same without asking anybody, with any
provider: all large tool results but the newest, and those that tell of an error, give way to a line that names the tool
and the size, where that brings the request down to the target; else the next way has its turn, which sums up the
results themselves. Where it stands first it does not wait for the threshold: it costs no call, and comes from
`compaction.elide_percent` of the window on, whenever half of the history would go. It is in no built-in list, since
what stood in a tool result alone is not known any more. Of Anthropic's two betas for compaction, `anthropic` uses the
one for a compaction on demand, and that for a compaction at a threshold where a platform or a model has it alone.
"""

_COMPACTORS: Final = """\
## [compactors.NAME]

A compactor of your own, whose name may stand in `compaction.strategies` and in a model's `strategies`:
[Custom compactors](custom-compactors.md).

```toml
[compactors.notes]
use = "http://127.0.0.1:9000"

[compaction]
strategies = ["notes", "summary"]
```
"""

_PROVIDERS: Final = """\
## [providers.NAME]

Laid over the provider file of that name, key by key; a new name makes a new provider. `tidegate providers` lists them.

```toml
[providers.work]
base_url = "https://llm.example.com/v1"
auth.env = "WORK_LLM_KEY"
```

In a variable: `TIDEGATE_PROVIDERS__WORK__BASE_URL`; a list or a number is written as JSON. A new provider needs its
`base_url`. That of `--upstream` is called `generic`: `auth.env` under `[providers.generic]` gives it a key for clients
that send none.

Several keys for one provider are several variables, `auth.env = ["KEY_A", "KEY_B"]`: a conversation of a client that
sends no key keeps to one of them, so that its prompt cache and what the provider has sealed stay of use. A key that
is refused (401, 402, 403, 429) rests, for as long as `Retry-After` says, and another is tried before the client sees
anything, up to three in all, unless the refusal is about the request itself (too long, too many bytes). Summaries are
shared by the keys; what the provider has sealed for one goes to no other: it goes out with that key again, or, where
that rests, a summary or the items themselves take its place. What only one account may read of the client's own
(sealed items, `previous_response_id`) is sent with one key alone: the one that this process remembers to have made it,
as in the client's own `/responses/compact`, else the conversation's; another only where that key's account says that it
has no such thing.

`strategies.responses = ["openai", "summary"]` says which ways of compacting a provider has, best first, for each API;
what is not named is not tried, and a model's own list under `[models]` counts for more.

With `through = "litellm"` and no `base_url` a provider is asked through LiteLLM's SDK, as the built-in `litellm`,
`bedrock` and `vertex-anthropic` are (`pip install 'tidegate[litellm]'`). `[providers.NAME.sdk]` has `prefix` then, put
before each model's name, and `arguments` of every call by LiteLLM's own names (`vertex_project`, `aws_region_name`,
`drop_params`, …). Keys are the client's; where it sends none, LiteLLM takes them from its own variables. No client sets
such arguments, and a model's name with a URL in it is refused.

`[providers.NAME.compaction]` takes the keys that `[models."NAME"]` has from `policy` to `estimator`, for all models of
the provider.

Whole provider files of your own, one `NAME.toml` each, lie in `providers/` in the user's configuration folder:
`~/.config/tidegate/providers/` on Linux, `~/Library/Application Support/tidegate/providers/` on macOS. They say what
these tables may say, models and refusals included (see `providers/` in the project), and lie between the built-in ones
and the tables: a file named as a built-in one is laid over it.
"""


def reference() -> str:
    """The reference of all keys, in Markdown."""
    short = "\n".join(f"- `TIDEGATE_{name.upper()}`: `{'.'.join(key)}`" for name, key in SHORT.items())
    parts = [_INTRODUCTION + short]
    for section, shape in SECTIONS.items():
        heading = f"## [{section}]\n\n{(shape.__doc__ or '').strip()}\n\n"
        parts.append(heading + "\n".join(_table(section, shape.model_fields)))
    parts.append(_MODELS + "\n" + "\n".join(_table("models.NAME", ModelSettings.model_fields)))
    parts.append(_PROVIDERS.rstrip())
    parts.append(_COMPACTORS + "\n" + "\n".join(_table("compactors.NAME", CompactorSettings.model_fields)))
    return "\n\n".join(parts) + "\n"


def _table(section: str, fields: Mapping[str, FieldInfo]) -> Iterator[str]:
    yield "| key | variable | default | allowed | meaning |"
    yield "|---|---|---|---|---|"
    for key, field in fields.items():
        name = variable((*section.split("."), key))
        yield f"| `{key}` | `{name}` | {_default(field.default)} | {allowed(field)} | {field.description} |"


def _default(value: object) -> str:
    match value:
        case None | () | PydanticUndefinedType():
            return ""
        case bool():
            return f"`{str(value).lower()}`"
        case int() if value >= 1024 and value % 1024 == 0:
            return f"`{value}` ({_size(value)})"
        case Path() | int() | float():
            return f"`{value}`"
        case _:
            return f'`"{value}"`'


def _size(value: int) -> str:
    power = max(n for n in (1, 2, 3) if value % 1024**n == 0)
    return f"{value // 1024**power} {('KiB', 'MiB', 'GiB')[power - 1]}"
