"""Where the YAML files are, and what they offer."""

from __future__ import annotations

from pathlib import Path

from dpr.core.errors import ConfigError


def conf_folder() -> Path:
    """``dpr/conf`` in an installed wheel, else ``conf`` beside the package (a clone or an editable install).

    Raises:
        ConfigError: neither is there, so the installation is incomplete.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / "biencoder_train_cfg.yaml").is_file():
            return folder
    raise ConfigError(f"no configuration files in {package / 'conf'} or {package.parent / 'conf'}; reinstall dpr")


def group_options(group: str, folders: list[Path]) -> list[str]:
    """Names of the YAML files of a config group; empty when there is no such group."""
    return sorted({path.stem for folder in folders for path in (folder / group).glob("*.yaml")})
