"""What a release checks of a tag is found where the repository has it."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dpr.core.version import __version__

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("step", ["The tag is the version", "The changelog and the citation name it"])
def test_the_tag_of_this_version_passes_and_another_does_not(step: str) -> None:
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    (command,) = (each["run"] for each in workflow["jobs"]["build"]["steps"] if each.get("name") == step)
    for tag, is_right in ((f"v{__version__}", True), ("v99.9.9", False), ("v", False)):
        done = subprocess.run(
            ["bash", "-ec", command], cwd=REPOSITORY, env={**os.environ, "GITHUB_REF_NAME": tag}, check=False
        )
        assert (done.returncode == 0) == is_right, (step, tag)


def test_the_version_is_one() -> None:
    cited = yaml.safe_load((REPOSITORY / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    changes = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(rf"(?m)^## {re.escape(__version__)} - {cited['date-released']}$", changes)
