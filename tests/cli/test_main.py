"""The command ``dpr`` itself and its two small subcommands."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dpr
from dpr.cli.main import COMMANDS, main
from dpr.formats.results import Hit, RetrievedQuestion, write_results
from dpr.storage.durable import durable_folder
from tests.architecture.source_files import REPOSITORY
from tests.helpers.patience import patient


def test_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"  {name} " in text for name in COMMANDS)
    assert main([]) == 2


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"dpr {dpr.__version__}\n"


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["retreive"]) == 2
    assert "did you mean retrieve" in capsys.readouterr().err


def test_verify_looks_at_every_part_of_a_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name in ("model.step1", "vectors"):
        with durable_folder(run / name) as folder:
            (folder / "a.txt").write_text("one")
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out.count("good") == 2
    (run / "vectors" / "a.txt").write_text("two")
    (run / "model.step2").mkdir()
    assert main(["verify", str(run)]) == 3
    said = capsys.readouterr().out
    assert "a.txt" in said and "model.step2: " in said
    assert main(["verify", str(tmp_path / "missing")]) == 2


def test_verify_judges_single_files_by_their_checksum_and_says_what_has_none(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    results, folder = tmp_path / "results.json", str(tmp_path)
    write_results(results, [RetrievedQuestion("who?", "1", ("me",), [Hit("7", "", "text", 0.5)])])
    (tmp_path / "notes.txt").write_text("mine")
    assert main(["verify", folder]) == main(["verify", str(results)]) == 0
    reported = capsys.readouterr().out
    assert (
        reported.count(f"{results}: good") == 2
        and f"{folder}: files without a checksum: notes.txt\n" in reported
    )
    assert main(["verify", str(tmp_path / "notes.txt")]) == 3
    assert "no notes.txt.sha256 beside it" in capsys.readouterr().out
    subprocess.run(
        ["sha256sum", "--check", "results.json.sha256"], cwd=tmp_path, check=True, capture_output=True
    )

    results.write_text(results.read_text().replace("0.5", "0.7"))
    assert main(["verify", folder]) == main(["verify", str(results)]) == 3
    assert capsys.readouterr().out.count("results.json: content has changed") == 2
    results.unlink()
    assert main(["verify", folder]) == 3
    assert "results.json: is missing" in capsys.readouterr().out
    (tmp_path / "results.json.sha256").write_text("?")
    assert main(["verify", folder]) == 3
    assert "holds no SHA-256" in capsys.readouterr().out


def test_doctor_names_versions_and_what_is_absent(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("torch", "transformers", "faiss-cpu", "cores", "GB free", "wandb"))


def test_doctor_loads_nothing_heavy_and_takes_no_time() -> None:
    program = (
        "import sys, time; start = time.perf_counter(); from dpr.cli.main import main; code ="
        " main(['doctor']); print(sorted({'torch', 'numpy', 'transformers', 'hydra'} & set(sys.modules)),"
        " code, time.perf_counter() - start)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=patient(60)
    )
    loaded, code, seconds = done.stdout.splitlines()[-1].rsplit(maxsplit=2)
    assert (loaded, code) == ("[]", "0"), done.stderr
    assert float(seconds) < patient(1)


def test_doctor_knows_every_extra(capsys: pytest.CaptureFixture[str]) -> None:
    from dpr.jobs import doctor

    text = (REPOSITORY / "setup.py").read_text()
    extras = set(re.findall(r'(?m)^        "([\w-]+)": \[', text[text.index("extras_require") :]))
    # whose packages are those of other extras, or a model
    assert {extra for extra, _ in doctor._EXTRAS.values()} == extras - {"bench", "interop", "minilm"}
    assert main(["doctor", "--rnu"]) == 2
    assert "'rnu' is not a setting; settings read key=value; did you mean run?" in capsys.readouterr().err
