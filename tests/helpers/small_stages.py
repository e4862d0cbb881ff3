"""The stages of ``dpr adapt`` and ``dpr quickstart`` with a small encoder."""

from dpr.adaptation import stages
from dpr.core.settings import Settings
from dpr.preparation.settings import NewEncoderSettings

_command_line = stages.command_line


def small_command_line(job: str, config: Settings) -> list[str]:
    """In place of ``stages.command_line``, which is asked of every stage that is about to run."""
    if isinstance(config, NewEncoderSettings):
        config.vocab_size = 400
        config.hidden = 16
    return _command_line(job, config)
