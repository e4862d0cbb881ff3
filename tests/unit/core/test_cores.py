"""The cores of a container."""

from pathlib import Path

import pytest

from dpr.core.cores import quota


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "200000 100000\n"}, 2),
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "1000 100000\n"}, 1),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n"}, None),
        ({"cpu.max": ""}, None),
        ({"cpu.max": "100000 \u00e9"}, None),
        ({"cpu.max": "100000 0"}, None),
        ({}, None),
    ],
)
def test_a_containers_quota_is_read(files: dict[str, str], expected: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert quota(str(tmp_path)) == expected
