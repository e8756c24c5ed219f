"""Settings as text: what a value may be, the reference table of all settings, and a config as TOML."""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import msgspec
import tomli_w

from iotmq.secret_text import SECRET_SHOWN, hide
from iotmq.setting_types import texts_below_fields

_UNIONS: Final = (Union, types.UnionType)
# The name and the password in a URL.
_USER_OF_URL: Final = re.compile(r"^([a-z][a-z0-9+.-]*://)[^/?#\s]*@", re.IGNORECASE)
_ARTICLES: Final = {bool: "true or false", int: "an integer", float: "a number", str: "text"}


class Setting(NamedTuple):
    """One key of one settings struct."""

    key: str
    type: Any  # without Annotated
    meta: msgspec.Meta
    default: Any  # msgspec.NODEFAULT when the key has to be given
    owner: type[msgspec.Struct]

    @property
    def is_secret(self) -> bool:
        """Return whether nobody is to read the value on a screen."""
        return bool((self.meta.extra or {}).get("is_secret"))

    @property
    def description(self) -> str:
        """Return the text below the setting's field, or that of a type which several settings share."""
        return texts_below_fields(self.owner).get(self.key) or self.meta.description or ""


@cache
def settings_of(struct: type[msgspec.Struct]) -> tuple[Setting, ...]:
    """Return the keys of a settings struct in the order they are declared."""
    hints = get_type_hints(struct, include_extras=True)
    settings: list[Setting] = []
    for field in msgspec.structs.fields(struct):
        kind, meta = _split(hints[field.name])
        default = field.default
        if default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        settings.append(Setting(field.encode_name, kind, meta, default, struct))
    return tuple(settings)


def annotated_type(setting: Setting) -> Any:
    """Return the type to convert a value of this setting with, bounds included."""
    return Annotated[setting.type, setting.meta]


def struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct itself when `kind` is one, else None."""
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def element_struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """Return the struct that a list or tuple type is made of, else None."""
    if get_origin(kind) in (tuple, list):
        return struct_of(_split(get_args(kind)[0])[0])
    return None


def tagged_structs_of(kind: Any) -> dict[str, type[msgspec.Struct]]:
    """Return the structs that the elements of a list or tuple may be, by their tag; empty for other types."""
    if get_origin(kind) not in (tuple, list):
        return {}
    element, _ = _split(get_args(kind)[0])
    structs = [struct_of(part) for part in get_args(element)] if get_origin(element) in _UNIONS else []
    return {str(struct.__struct_config__.tag): struct for struct in structs if struct is not None}


def tag_field_of(struct: type[msgspec.Struct]) -> str | None:
    """Return the key that says which one of several structs a table is; None when there is only this one."""
    return struct.__struct_config__.tag_field


def allowed_values(kind: Any, meta: msgspec.Meta | None = None) -> str:
    """In words, what a setting of this type may be."""
    meta = meta or msgspec.Meta()
    origin = get_origin(kind)
    if origin is Annotated:
        return allowed_values(*_split(kind))
    if origin is Literal:
        return _alternatives([toml_value(value) for value in get_args(kind)])
    if tagged := tagged_structs_of(kind):
        (key,) = {tag_field_of(struct) for struct in tagged.values()}
        words = _alternatives([toml_value(tag) for tag in tagged])
        return f"a list, each a table with {key} = {words}{_sizes(meta, 'of them')}"
    if origin in _UNIONS:
        return _alternatives([allowed_values(part) for part in get_args(kind) if part is not type(None)])
    if origin in (tuple, list):
        return f"a list, each {allowed_values(get_args(kind)[0])}{_sizes(meta, 'of them')}"
    if origin is dict:
        return "a table"
    if struct := struct_of(kind):
        return "a table of " + ", ".join(setting.key for setting in settings_of(struct))
    if kind is str:
        is_secret = bool((meta.extra or {}).get("is_secret"))
        return (
            ("a secret" if is_secret else "text")
            + _sizes(meta, "characters")
            + (f" matching `{meta.pattern}`" if meta.pattern else "")
        )
    return _ARTICLES.get(kind, getattr(kind, "__name__", str(kind))) + _range(meta)


def toml_value(value: Any) -> str:
    """One value as TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(element) for element in value) + "]"
    if isinstance(value, msgspec.Struct):
        value = _tag_of(value) | {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, dict):
        given = {key: inner for key, inner in value.items() if inner is not None}
        pairs = (f"{_toml_key(key)} = {toml_value(inner)}" for key, inner in given.items())
        return "{ " + ", ".join(pairs) + " }"
    # JSON's escapes are TOML's, apart from one control character that JSON leaves as it is.
    return msgspec.json.encode(str(value)).decode().replace("\x7f", "\\u007f")


def toml_document(config: msgspec.Struct) -> str:
    """A whole config as a TOML file that reads back as the same config, but for secrets, which are masked."""
    return tomli_w.dumps(_shown(config))


def _shown(value: Any) -> Any:
    """Return the value without its secrets, and without what is None in it, which TOML does not have."""
    if isinstance(value, msgspec.Struct):
        names = zip(value.__struct_fields__, settings_of(type(value)), strict=True)
        given = ((setting, inner) for name, setting in names if (inner := getattr(value, name)) is not None)
        return _tag_of(value) | {
            setting.key: SECRET_SHOWN if setting.is_secret and inner else _shown(inner)
            for setting, inner in given
        }
    if isinstance(value, str):
        return _USER_OF_URL.sub(rf"\1{SECRET_SHOWN}@", value)
    return [_shown(inner) for inner in value] if isinstance(value, list | tuple) else value


def _tag_of(value: msgspec.Struct) -> dict[str, Any]:
    """Return key and value that say which struct it is."""
    key = tag_field_of(type(value))
    return {} if key is None else {key: type(value).__struct_config__.tag}


def secrets_of(value: Any) -> Iterator[tuple[msgspec.Struct, str, str]]:
    """Yield every secret that is set in settings: whose it is, the field, and the secret."""
    if isinstance(value, msgspec.Struct):
        for name, setting in zip(value.__struct_fields__, settings_of(type(value)), strict=True):
            inner = getattr(value, name)
            if not setting.is_secret:
                yield from secrets_of(inner)
            else:
                for text in inner.values() if isinstance(inner, dict) else (inner,):
                    if text:
                        yield value, name, text
    elif isinstance(value, list | tuple):
        for each in value:
            yield from secrets_of(each)


def hide_secrets(config: msgspec.Struct) -> None:
    """Have the secrets of settings that came as bytes show themselves no more than those that were read."""
    for owner, name, _ in secrets_of(config):
        hide(owner, name)


def reference(config_struct: type[msgspec.Struct]) -> str:
    """Return every setting with its allowed values, default and meaning, as Markdown."""
    lines: list[str] = []
    lines += _table(_values_of(config_struct))
    for setting in settings_of(config_struct):
        if struct := struct_of(setting.type):
            lines += _section(setting.key, setting.description, struct)
        elif element := element_struct_of(setting.type):
            lines += _section(setting.key, setting.description, element, is_list=True)
    return "\n".join(lines) + "\n"


def _section(
    name: str, description: str, struct: type[msgspec.Struct], *, is_list: bool = False, tag: str = ""
) -> list[str]:
    """Return the table of one section, and behind it those of the sections in it."""
    heading = f"[[{name}]]" if is_list else f"[{name}]"
    if tag:
        heading += f" {tag_field_of(struct)} = {toml_value(tag)}"
    lines = ["", f"### {heading}", "", description, "", *_table(_values_of(struct))]
    for inner in settings_of(struct):
        if section := struct_of(inner.type):
            lines += _section(f"{name}.{inner.key}", inner.description, section)
        elif element := element_struct_of(inner.type):
            lines += _section(f"{name}.{inner.key}", inner.description, element, is_list=True)
        for tag, element in tagged_structs_of(inner.type).items():
            text = " ".join((element.__doc__ or "").split())
            lines += _section(f"{name}.{inner.key}", text, element, is_list=True, tag=tag)
    return lines


def _values_of(struct: type[msgspec.Struct]) -> list[Setting]:
    """Return the settings of a section that are not sections themselves."""
    return [setting for setting in settings_of(struct) if struct_of(setting.type) is None]


def _table(settings: list[Setting]) -> list[str]:
    lines = ["| setting | allowed | default | meaning |", "| --- | --- | --- | --- |"]
    for setting in settings:
        default = "(required)" if setting.default is msgspec.NODEFAULT else f"`{toml_value(setting.default)}`"
        if setting.default is None:
            default = "(none)"
        cells = (
            f"`{setting.key}`",
            allowed_values(setting.type, setting.meta),
            default,
            setting.description,
        )
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return lines


def _split(kind: Any) -> tuple[Any, msgspec.Meta]:
    """A type without its Annotated, and what each Meta in there says."""
    if get_origin(kind) is not Annotated:
        return kind, msgspec.Meta()
    inner, *extras = get_args(kind)
    said: dict[str, Any] = {}
    for extra in extras:
        if isinstance(extra, msgspec.Meta):
            said.update(extra.__rich_repr__())
    return inner, msgspec.Meta(**said)


def _alternatives(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _range(meta: msgspec.Meta) -> str:
    if meta.ge is not None and meta.le is not None:
        return f" from {_number(meta.ge)} to {_number(meta.le)}"
    bounds = (("at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt))
    words = [f" {word} {_number(bound)}" for word, bound in bounds if bound is not None]
    return " and".join(words)


def _sizes(meta: msgspec.Meta, unit: str) -> str:
    low, high = meta.min_length, meta.max_length
    if low and high:
        return f", {low} to {_number(high)} {unit}"
    if low:
        return f", at least {low} {unit}" if low > 1 else ", not empty"
    return f", at most {_number(high)} {unit}" if high is not None else ""


def _number(value: float) -> str:
    # 1 and 1.0 alike: `typing` may have the type of the one where the other is meant, since they are equal.
    return f"{int(value):,}" if value == int(value) else f"{value:,}"


def _toml_key(key: str) -> str:
    is_bare = key.isascii() and key.replace("-", "").replace("_", "").isalnum()
    return key if is_bare else toml_value(key)
