"""Which stages a command runs, and a small encoder for them; whether every page of the documents runs."""

from pathlib import Path

import pytest

from dpr.adaptation import choices, stages
from dpr.core.settings import Settings
from tests.helpers.small_stages import small_command_line


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all-docs", action="store_true", help="run the commands of every page, not of README.md alone"
    )


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the commands that stages have run; the trainings are short."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DPR_CACHE", str(tmp_path / "cache"))
    ran: list[str] = []

    def noted(job: str, config: Settings) -> list[str]:
        command = small_command_line(job, config)
        ran.append(command[1])
        return command

    monkeypatch.setattr(stages, "command_line", noted)
    monkeypatch.setattr(choices, "LEAST_PAIRS", 64)
    return ran
