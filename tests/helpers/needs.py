"""What settings need of each other, from what they declare: values with which one has an effect, and values
with which it has none."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args

from dpr.core.errors import ConfigError
from dpr.core.setting_keys import Setting, settings
from dpr.core.setting_rules import Condition, Leaf, conditions_of
from dpr.core.settings import Settings, leaves


@cache
def entries(config_class: type) -> dict[str, Setting]:
    """Every setting by its key."""
    return {entry.key: entry for entry in settings(config_class)}


def put(config: Settings, key: str, value: Any) -> None:
    """Sets one value by its dotted key."""
    leaf = leaves(config)[key]
    setattr(leaf.owner, leaf.name, value)


def meet(config: Settings, key: str) -> None:
    """Sets what ``key`` requires and is not there: the first condition of each rule that is not met."""
    for is_required, conditions in conditions_of(key, leaves(config)):
        if is_required and all(condition.holds is False for condition in conditions):
            if conditions[0].key != key:
                meet(config, conditions[0].key)
            fulfil(config, conditions[0])


def fulfil(config: Settings, condition: Condition) -> None:
    """Sets a value with which it holds."""
    _try(config, condition, wanted=True)


def spoil(config: Settings, condition: Condition) -> None:
    """Sets a value with which it does not hold."""
    _try(config, condition, wanted=False)


def _try(config: Settings, condition: Condition, *, wanted: bool) -> None:
    kind: Any = type(config)
    entry = entries(kind)[condition.key]
    leaf = leaves(config)[condition.key]
    values = [
        leaf.value,
        leaf.default,
        *condition.values,
        *entry.rule.choices,
        away(entry, leaf),
        *([None] if leaf.default is None else []),
        *([] if leaf.default is None else [type(leaf.default)()]),
    ]
    for value in values:
        is_text_of_list = isinstance(value, str) and "list" in str(entry.type)
        put(
            config,
            condition.key,
            type(leaf.default)(0)
            if value == "0"
            else None
            if value == "null"
            else [value]
            if is_text_of_list
            else value,
        )
        if condition.holds == wanted:
            return
    raise AssertionError(f"{condition} cannot be {wanted}")


def away(entry: Setting, leaf: Leaf) -> Any:
    """A value away from the default, of the setting's type."""
    default, kinds = leaf.default, (entry.type, *get_args(entry.type))
    if entry.rule.choices:
        other = next(
            choice
            for choice in entry.rule.choices
            if choice not in ([default] if isinstance(default, str) else [])
        )
        return [other] if "list" in str(entry.type) else other
    if bool in kinds:
        return not default
    for kind in (int, float):
        if kind in kinds:
            return next(
                value
                for value in map(kind, (1, 2, 0.5, 0.25, 3, 0, -1))
                if value != default and _is_allowed(entry, value)
            )
    if entry.is_open:
        return {"name": "value"}
    return (
        [1]
        if "list[int]" in str(entry.type) or "list[float]" in str(entry.type)
        else ["a:B"]
        if "list" in str(entry.type)
        else "a:B"
    )


def _is_allowed(entry: Setting, value: float) -> bool:
    try:
        entry.rule.check(entry.key, value)
    except ConfigError:
        return False
    return True
