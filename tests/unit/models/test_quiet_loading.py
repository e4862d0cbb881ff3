"""What loading a backbone prints: nothing of the pooler that is left out on purpose, and a bar on the main rank alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from transformers import AutoConfig, AutoModel

from tests.helpers.tiny import encoder_folder

PROGRAM = """
import sys
from unittest import mock
from dpr.core.distributed import Ranks
from dpr.models import pretrained
from dpr.models.backbones import load_backbone
from transformers.utils import logging
with mock.patch.object(pretrained, "current_ranks", lambda: Ranks(int(sys.argv[2]), 2)):
    level = logging.get_verbosity()
    load_backbone(sys.argv[1])
    assert logging.is_progress_bar_enabled() and logging.get_verbosity() == level
"""


def test_nothing_is_said_of_the_pooler_and_each_bar_comes_once(tmp_path: Path) -> None:
    folder = encoder_folder(tmp_path / "encoder")
    AutoModel.from_config(AutoConfig.from_pretrained(folder)).save_pretrained(folder)  # with its pooler
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    reported = []
    for rank in "01":
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(folder), rank], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        reported.append(done.stdout + done.stderr)
    assert "pooler" not in "".join(reported) and "REPORT" not in "".join(reported)
    assert ["Loading weights" in text for text in reported] == [True, False]
