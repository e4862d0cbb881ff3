"""What is gone is refused with a sentence that says what to do instead."""

from __future__ import annotations

import pytest

from dpr.cli.main import COMMANDS, main
from dpr.core import retired


@pytest.mark.parametrize("name", retired.COMMANDS)
def test_a_command_that_is_gone_says_what_to_do_instead(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert name not in COMMANDS
    assert main([name, "train_datasets=[a.json]"]) == 2
    assert capsys.readouterr().err == f"error: dpr {name} is gone: {retired.COMMANDS[name]}\n"


@pytest.mark.parametrize("setting", retired.SETTINGS)
def test_a_setting_that_is_gone_says_what_to_do_instead(
    setting: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = setting if "=" in setting else f"{setting}=1"
    expected = f"{setting} is gone: {retired.SETTINGS[setting]}"
    for command in sorted(COMMANDS, key=lambda name: name != "train"):  # which had most of them
        assert main([command, given]) == 2
        if expected in capsys.readouterr().err:
            return
    pytest.fail("no command says so")
