"""Command line -> composed configuration -> dataclass object -> job -> exit code.

Hydra stays in this file. It composes the configuration and, with ``-m``, runs sweeps; it never changes the working directory and writes
no logs or folders. Below this file there are dataclass objects only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from dpr.cli import arguments
from dpr.cli.conf_folder import conf_folder
from dpr.cli.endings import exit_code_of
from dpr.cli.help_text import help_text
from dpr.cli.keys import check_keys
from dpr.cli.legacy import with_original_defaults
from dpr.core.errors import ConfigError
from dpr.core.logs import configure_logging
from dpr.core.machine import launched
from dpr.core.settings import Settings, put_back_idle, settings

Config = TypeVar("Config", bound=Settings)
Job = Callable[[Config], Any]


def launch(config_name: str, config_class: type[Config], job: Job[Config], argv: list[str]) -> int:
    """Runs ``job`` with the configuration that ``argv`` asks for, and returns the exit code.

    Args:
        config_name: the YAML file in ``conf/`` without its suffix. Its ``defaults`` list begins with ``<config_name>_schema``, under which
            ``config_class`` is registered here.
        config_class: the root dataclass.
        job: called with the checked object; a sweep optimises what it returns. It imports heavy packages itself.
        argv: the arguments after the program name.
    """

    def work() -> int:
        rank = launched("RANK") if arguments.under_launcher() else 0
        configure_logging(rank=rank)
        try:
            return _launch(config_name, config_class, job, argv, is_main=rank == 0)
        except Exception as error:
            if (message := _hydra_message(error)) is None:
                raise
            raise ConfigError(message) from error

    return exit_code_of(work)


def _launch(config_name: str, config_class: type[Config], job: Job[Config], argv: list[str], *, is_main: bool) -> int:
    script = Path(sys.argv[0])
    program = f"python {script.name}" if script.suffix == ".py" and script.name != "__main__.py" else " ".join(["dpr", *sys.argv[1:2]])
    given = arguments.parse(argv)
    folder = conf_folder()
    if given.wants_help:
        if is_main:
            print(help_text(program, config_class, folder), end="")
        return 0
    if given.is_sweep and arguments.under_launcher():
        raise ConfigError(
            "-m (--multirun) cannot run under torchrun: its processes cannot form a second group\n"
            "start one torchrun for each combination instead, e.g. for lr in 1e-5 2e-5; do torchrun ... train.learning_rate=$lr; done"
        )
    known = {entry.key: entry for entry in settings(config_class)}
    searched = [folder, *(Path(extra).absolute() for extra in given.values_of("--config-dir", "-cd", "--config-path", "-cp"))]
    overrides, warnings = check_keys(given.overrides, known, searched, program=program)
    if is_main:
        for warning in warnings:
            print(f"warning: {warning}", file=sys.stderr)
    overrides = arguments.quote_values(with_original_defaults(overrides, known), known, is_sweep=given.is_sweep)
    _register(config_name, config_class)
    if given.is_for_hydra and not is_main:
        return 0
    checked = partial(_checked, given={override.partition("=")[0].lstrip("+~") for override in overrides}, is_main=is_main)
    if given.is_sweep or given.is_for_hydra:
        _run_by_hydra(config_name, lambda composed: job(checked(composed)), folder, given.flags, overrides, is_sweep=given.is_sweep)
    else:
        job(checked(_compose(config_name, folder, given, overrides)))
    return 0


def _version_base() -> dict[str, str]:
    """Hydra 1.3 warns without ``version_base``, 1.4 warns with it."""
    import hydra

    major, minor = (int(part) for part in hydra.__version__.split(".")[:2])
    return {} if (major, minor) >= (1, 4) else {"version_base": "1.3"}


def _register(config_name: str, config_class: type) -> None:
    from hydra.core.config_store import ConfigStore
    from hydra.plugins.config_source import ConfigSource

    if not hasattr(ConfigSource, "_header_of_any_version"):
        # DPR's files say "@package _group_", which is the default anyway, but which this version of Hydra refuses.
        ConfigSource._header_of_any_version = ConfigSource._get_header_dict  # type: ignore[attr-defined]
        ConfigSource._get_header_dict = staticmethod(_header)  # type: ignore[assignment, method-assign]
    ConfigStore.instance().store(name=f"{config_name}_schema", node=config_class)


def _header(text: str) -> dict[str, str | None]:
    from hydra.plugins.config_source import ConfigSource

    read: dict[str, str | None] = ConfigSource._header_of_any_version(text)  # type: ignore[attr-defined]
    return {key: None if value == "_group_" else value for key, value in read.items()}


def _compose(config_name: str, folder: Path, given: arguments.Arguments, overrides: list[str]) -> Any:
    """A plain run: only the configuration is Hydra's."""
    from hydra import compose, initialize_config_dir

    main_folder = (given.values_of("--config-path", "-cp") or [str(folder)])[-1]
    extra = [Path(path).absolute() for path in given.values_of("--config-dir", "-cd")]
    if missing := [path for path in [*extra, Path(main_folder)] if not path.is_dir()]:
        raise ConfigError(f"there is no configuration folder {missing[0]}")
    if extra:
        overrides = [*overrides, "hydra.searchpath=[" + ",".join(f"'file://{path}'" for path in extra) + "]"]
    with initialize_config_dir(str(Path(main_folder).absolute()), **_version_base()):
        name = (given.values_of("--config-name", "-cn") or [config_name])[-1]
        try:
            return compose(name, overrides=overrides)
        except Exception as error:  # only the command line can be wrong here
            raise ConfigError(_hydra_message(error) or str(error)) from error


def _checked(composed: Any, *, given: Collection[str], is_main: bool) -> Any:
    """The dataclass object. What has no effect is refused if it is among the keys ``given``; what a file says besides is told."""
    from omegaconf import OmegaConf

    config: Any = OmegaConf.to_object(composed)
    if not hasattr(config, "check"):
        raise ConfigError("the configuration file does not begin its defaults with this job's schema; see docs/configuration.md")
    for sentence in put_back_idle(config, given):
        if is_main:
            print(f"note: of the files of settings, {sentence.partition(';')[0]}", file=sys.stderr)
    config.check()
    return config


def _run_by_hydra(
    config_name: str, job: Callable[[Any], Any], folder: Path, flags: list[str], overrides: list[str], *, is_sweep: bool
) -> None:
    """Sweeps, and the flags that Hydra answers itself (``--cfg``, ``--info``, completion)."""
    import hydra
    from hydra.core.hydra_config import HydraConfig

    quiet = ["hydra.output_subdir=null", "hydra/job_logging=none", "hydra.run.dir=.", "hydra.job.chdir=false"]
    base = next((token.partition("=")[2] for token in overrides if token.startswith("output_dir=")), None)
    numbered = is_sweep and base is not None and "${" not in base and "," not in base
    if is_sweep and not any(token.startswith("hydra.sweep") for token in overrides):
        quiet += [f"hydra.sweep.dir={base if numbered else 'multirun'}", "hydra.sweep.subdir=${hydra:job.num}"]

    def task(composed: Any) -> Any:
        if numbered:
            # Otherwise the second job would find and resume the run of the first.
            composed.output_dir = HydraConfig.get().runtime.output_dir
        return job(composed)

    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv = [before[0], *flags, *overrides, *(quiet if is_sweep else [])]
    os.environ["HYDRA_FULL_ERROR"] = "1"  # errors then reach our own handler instead of ending the process
    try:
        hydra.main(config_path=str(folder), config_name=config_name, **_version_base())(task)()
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]


def _hydra_message(error: Exception) -> str | None:
    """A short text for errors of Hydra and OmegaConf; None for all others."""
    if not type(error).__module__.startswith(("hydra.", "omegaconf.")):
        return None
    cause = error.__cause__ if type(error.__cause__).__module__.startswith("omegaconf.") else error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    text = [line for line in lines if not line.startswith(("full_key:", "object_type=", "reference_type=", "See https", "Set the env"))]
    if type(error).__name__ == "OverrideParseException":
        what = getattr(error, "override", "an argument")
        return f"{what} cannot be read ({text[0]})\nquote a value with special characters: \"key='value'\""
    key = getattr(cause, "full_key", None)
    if key and "is not Optional" in text[0]:
        return f"{key} does not accept null; leave it out for the default"
    return (f"{key}: " if key and key not in text[0] else "") + "\n".join(text[:4])
