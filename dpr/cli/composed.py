"""Hydra, which reads every command line and composes a configuration of it and the files in ``conf/``.

Hydra stays in this file. It never changes the working directory, and writes no logs or folders.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, get_origin

from dpr.cli.arguments import KEEP_SPACES, Arguments, exists, is_one_of, is_ready, items_of
from dpr.core.errors import ConfigError, InputError
from dpr.core.settings import (
    Setting,
    drop_unused,
    leaves,
    quoted,
    typed,
    unused_keys,
    unused_note,
    without_none,
)

_PLAIN = re.compile(r"[\w./+\-@%*?|:]+", re.ASCII)
# of an entry; "[Q]" is not a list there
_TEXT_OPTIONS = (*KEEP_SPACES, "special_token", "special_query_token", "query_special_suffix")
_FILES = "dpr-conf"
"""Scheme, in Hydra's search path, of folders that may contain files of the original."""


def run_composed(
    config_name: str | None,
    config_class: type,
    job: Callable[[Any], Any],
    given: Arguments,
    overrides: list[str],
    *,
    folder: Path,
    is_main: bool,
) -> Any:
    """Composes the configuration and calls ``job`` with it, or with ``--cfg`` prints it.

    Args:
        config_name: YAML file in ``conf/`` without its suffix. Its ``defaults`` list begins with
            ``<config_name>_schema``, under which ``config_class`` is registered here. None: ``config_class``
            alone.
        overrides: checked; values with special characters in quotes.
        folder: ``conf/``.
        is_main: True if this process prints notes.

    Raises:
        ConfigError: Hydra rejects the configuration; carries its message.
    """
    from hydra.core.config_store import ConfigStore
    from hydra.core.plugins import Plugins

    schema = "settings" if config_name is None else f"{config_name}_schema"
    ConfigStore.instance().store(name=schema, node=config_class)
    for kind in _plugins():
        Plugins.instance().register(kind)
    keys = [override.partition("=")[0].lstrip("+~") for override in overrides]
    main = Path([str(folder), *given.flags["path"]][-1]).absolute()
    extra = [Path(path).absolute() for path in given.flags["dir"]]
    if missing := [path for path in [*extra, main] if not path.is_dir()]:
        raise ConfigError(f"there is no configuration folder {missing[0]}")
    if extra:
        overrides = [
            *overrides,
            "hydra.searchpath=[" + ",".join(quoted(f"{_FILES}://{path}") for path in extra) + "]",
        ]
    name = [config_name or schema, *given.flags["name"]][-1]
    try:
        composed = _compose(name, None if config_name is None else main, overrides)
        if given.flags["cfg"]:
            from omegaconf import OmegaConf

            if is_main:
                print(OmegaConf.to_yaml(composed), end="")
            return None
        config = to_object(composed, keys, is_main=is_main)
    except Exception as error:
        if (message := _hydra_message(error)) is None:
            raise
        raise ConfigError(message) from error
    return job(config)


def quote_values(overrides: list[str], known: Mapping[str, Setting], *, has_groups: bool) -> list[str]:
    """Quotes values for Hydra's grammar if the setting's type says that the text is meant literally.

    So ``output_dir=runs/a, b (1)`` and ``train_datasets=[my data.json,b=1.json]`` need no second layer of
    quotes. Without groups of files ``${...}`` is literal too, and a list that is given twice gets the values
    of both.
    """
    ready: dict[str, str] = {}
    others = []
    for override in overrides:
        key, has_value, raw = override.partition("=")
        name = key.strip().lstrip("+")
        value = raw.strip()
        setting = known.get(name)
        is_option = any(entry.is_open and name.startswith(entry.key + ".") for entry in known.values())
        if not has_value or (setting is None and not is_option):
            others.append(override)
            continue
        value = _quoted_value(name, value, setting, resolves=has_groups)
        is_list = setting is not None and get_origin(without_none(setting.type)) is list
        if is_list and key in ready and not has_groups and value.startswith("["):
            value = f"{ready[key].removesuffix(']')},{value[1:]}"
        ready[key] = value
    return [*others, *(f"{key}={value}" for key, value in ready.items())]


def _quoted_value(name: str, value: str, setting: Setting | None, *, resolves: bool) -> str:
    if is_ready(value):
        return value
    kind = None if setting is None else without_none(setting.type)
    # Without a setting it is an option of an entry.
    takes_text = is_one_of(_TEXT_OPTIONS, name) if setting is None else setting.takes_text
    takes_texts = setting is None or setting.takes_texts
    if exists(value) and (takes_text or takes_texts):
        return f"[{quoted(value)}]" if kind == list[str] else quoted(value)
    if takes_text or kind in (int, float):  # 0,1 is no list
        return quoted(value, resolves=resolves)
    if get_origin(kind) is dict:
        with suppress(ValueError):
            return typed(json.loads(value))
    if get_origin(kind) is not list:
        if not takes_texts or value.startswith("{"):  # braces are a set of options, which Hydra reads
            return value
        if "," not in value and not (value.startswith("[") and value.endswith("]")):
            return value if _PLAIN.fullmatch(value) else quoted(value, resolves=resolves)
    return "[" + ",".join(_quoted_items(value, resolves=resolves, is_text=kind == list[str])) + "]"


def _quoted_items(value: str, *, resolves: bool, is_text: bool) -> list[str]:
    """Returns the items of a list, which commas separate even without brackets."""
    return [
        part
        if part.startswith("{") or is_ready(part) or (_PLAIN.fullmatch(part) and not is_text)
        else quoted(part, resolves=resolves and not exists(part))
        for part in items_of(value)
    ]


def _compose(name: str, folder: Path | None, overrides: list[str]) -> Any:
    """Composes the configuration without Hydra's logging and folders. Without a folder no setting can be
    taken for a group."""
    import hydra
    from hydra import compose, initialize_config_dir

    # Hydra 1.3 warns without version_base, 1.4 warns with it
    is_newer = int(hydra.__version__.split(".")[1]) >= 4
    version: dict[str, Any] = {} if is_newer else {"version_base": "1.3"}
    # The folder of this module has no files of settings.
    with initialize_config_dir(str(folder or Path(__file__).parent), **version):
        try:
            return compose(name, overrides=overrides)
        except InputError:
            raise
        except Exception as error:  # only the command line can be wrong here
            raise ConfigError(_hydra_message(error) or str(error)) from error


def to_object(composed: Any, given: Collection[str], *, is_main: bool) -> Any:
    """Returns the checked dataclass object. One line names those of the keys ``given`` that have no effect;
    values in files without effect are not reported."""
    from omegaconf import OmegaConf

    from dpr.core.paths import texts_in

    config: Any = OmegaConf.to_object(composed)
    if not hasattr(config, "check"):
        raise ConfigError(
            "the configuration file does not begin its defaults with this job's schema; see"
            " docs/configuration.md"
        )
    # Keys without effect, and the entries of catalogues that no other setting names.
    unused = unused_keys(config)
    known = leaves(config)
    catalogues = [key for key in known if key in ("datasets", "ctx_sources")]
    texts = [text for key, leaf in known.items() if key not in catalogues for text in texts_in(leaf.value)]
    named = {part.strip() for text in texts for part in text.split(",")}
    for key in catalogues:
        unused += [f"{key}.{name}" for name in known[key].value if name not in named]
    drop_unused(config)
    config.check()
    told = [key for key in given if any(key == name or key.startswith(f"{name}.") for name in unused)]
    if told and is_main:
        print(f"warning: {unused_note(told)}", file=sys.stderr)
    return config


@cache
def _plugins() -> tuple[type[Any], type[Any]]:
    """Returns the classes that also read the configuration files of the original.

    Those files begin with "@package _group_". This is the default anyway, but this version of Hydra takes it
    for a name. The folders of configuration files get a scheme of their own, whose reader leaves that line
    out. Everything else is Hydra's reading of files.
    """
    from hydra.core.config_search_path import ConfigSearchPath
    from hydra.core.plugins import Plugins
    from hydra.plugins.config_source import ConfigResult, ConfigSource
    from hydra.plugins.search_path_plugin import SearchPathPlugin

    from dpr.formats.text_input import read_yaml
    from dpr.storage.untrusted import describe

    sources: list[Any] = Plugins.instance().discover(ConfigSource)
    files: Any = next(kind for kind in sources if kind.scheme() == "file")

    class OriginalFiles(files):
        @staticmethod
        def scheme() -> str:
            return _FILES

        def load_config(self, config_path: str) -> ConfigResult:
            file = Path(self.path, self._normalize_file_name(config_path))
            value = read_yaml(file) if file.is_file() else None  # names file and line of what is wrong
            if not isinstance(value, dict | None):
                raise InputError(
                    f"holds {describe(value)}", file=file, expected="settings, each as key: value"
                )
            loaded: ConfigResult = super().load_config(config_path)
            if loaded.header["package"] == "_group_":
                loaded.header["package"] = None
            return loaded

    class OriginalFolders(SearchPathPlugin):
        def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
            for element in search_path.get_path():
                if element.provider == "main":
                    element.path = f"{_FILES}://{element.path.removeprefix('file://')}"

    return OriginalFiles, OriginalFolders


def _hydra_message(error: Exception) -> str | None:
    """Returns a short text for errors of Hydra and OmegaConf; None for all others."""
    if not type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return None
    cause = error.__cause__ if type(error.__cause__).__module__.startswith("omegaconf.") else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = [
        line
        for line in lines
        if not line.startswith(("full_key:", "object_type=", "reference_type=", "See https", "Set the env"))
    ]
    if type(error).__name__ == "OverrideParseException":
        what = getattr(error, "override", "an argument")
        return f"{what} cannot be read ({text[0]})\nquote a value with special characters: \"key='value'\""
    key = getattr(cause, "full_key", None)
    if key and "is not Optional" in text[0]:
        return f"{key} does not accept null; leave it out for the default"
    found = re.match(r"Value '(.*)' (?:of type .* converted to|is not a valid) (Integer|Float|bool)", text[0])
    if key and found:
        kinds = {"Integer": "a whole number", "Float": "a number", "bool": "true or false"}
        return f"{key}={found[1]} is not {kinds[found[2]]}"
    return (f"{key}: " if key and key not in text[0] else "") + text[0]
