"""What a command line becomes, and what a person reads when it is wrong."""

import logging
import random
import re
import string
from pathlib import Path

import hypothesis
import pytest
from hypothesis import strategies as st

from dpr.cli.launch import launch
from dpr.cli.main import COMMANDS, main
from dpr.core.distributed import process_group
from dpr.core.errors import DivergedError, InputError
from dpr.core.settings import settings
from dpr.training.command_settings import TrainCommand
from tests.cli.dry_job import Seen
from tests.helpers.examples import examples

ODD_VALUES = ["[", "{a:1}", "${x}", "1e999", "[[],{}]", "'", "nan", "a,b", "\\\\", "???"]
KEYS = [entry.key for entry in settings(TrainCommand)]


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def compose(*argv: str) -> TrainCommand:
    seen = Seen()
    names = set(re.findall(r"(?m)^[ -]*datasets\.(\w+)", "\n".join(argv)))
    named = [f"dev_datasets=[{','.join(names)}]"] if names else []  # what no setting names is refused
    assert launch("biencoder_train_cfg", TrainCommand, seen, [*argv, *named]) == 0
    return seen.only


def refused(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The message of a command line that is refused before the job starts, in at most five lines."""
    seen = Seen()
    assert launch("biencoder_train_cfg", TrainCommand, seen, list(argv)) == 2
    assert not seen.configs
    message = capsys.readouterr().err
    assert 1 <= len(message.strip().splitlines()) <= 5, message
    assert "Traceback" not in message
    return message


class TestComposition:
    def test_finetune_keeps_what_a_trained_model_knows(self) -> None:
        config = compose("train=finetune")
        assert config.loss.temperature == 0.05
        assert config.train.learning_rate == 1e-4 and config.train.num_train_epochs == 3
        assert compose("train=finetune", "loss.temperature=0.02").loss.temperature == 0.02

    def test_dpr_recipe_has_dpr_values(self) -> None:
        train = compose("train=biencoder_nq").train
        assert (train.batch_size, train.dev_batch_size, train.num_train_epochs) == (16, 64, 40)
        assert (train.learning_rate, train.warmup_steps) == (2e-5, 1237)
        assert (train.max_grad_norm, train.adam_eps) == (2.0, 1e-8)

    def test_yaml_defaults_agree_with_the_dataclasses(self) -> None:
        config, plain = compose(), TrainCommand()
        config.datasets = {}
        assert config == plain

    def test_dashed_arguments_spaces_and_stray_backslashes_are_understood(self) -> None:
        config = compose(
            " train_datasets=[a.json]", "--train.batch_size=7", "seed=3\\", "\\", "", "--seed=4 "
        )
        assert (config.train_datasets, config.train.batch_size, config.seed) == (["a.json"], 7, 4)

    @pytest.mark.parametrize("sign", ["", "--"])
    def test_the_space_at_the_end_of_a_prefix_is_part_of_it(self, sign: str) -> None:
        given = {"plain": "query: ", "comma": "it's a question, so: ", "none": "query:"}
        given["quoted"] = "'query: '"
        config = compose(*(f"{sign}datasets.{name}.query_prefix={value}" for name, value in given.items()))
        found = {name: config.datasets[name]["query_prefix"] for name in given}
        assert found == given | {"quoted": "query: "}
        inside = compose("datasets.web={file: a.json, passage_prefix: 'passage: '}")
        assert inside.datasets["web"]["passage_prefix"] == "passage: "

    @pytest.mark.parametrize(
        ("option", "text"),
        [
            ("special_token", "[Q]"),
            ("special_query_token", "{x}"),
            ("query_special_suffix", "(1)"),
            ("query_prefix", "asked, in words:"),
        ],
    )
    def test_an_option_that_is_a_text_is_no_list(self, option: str, text: str) -> None:
        assert compose(f"datasets.web.{option}={text}").datasets["web"] == {option: text}

    @pytest.mark.parametrize("name", ["b,c.json", "it's [1].json", '(1){2} "x=1".json'])
    @pytest.mark.parametrize("exists", [True, False])
    def test_a_path_needs_no_second_layer_of_quotes(self, name: str, exists: bool, tmp_path: Path) -> None:
        if exists:
            (tmp_path / name).touch()
        config = compose(
            f"output_dir=out/{name}",
            *([f"train_datasets={name}"] if exists or "," not in name else []),
            f"datasets.m.file=d/{name.replace(',', '')}",
        )
        assert config.output_dir == f"out/{name}"
        assert config.train_datasets in (name, None)
        assert config.datasets["m"]["file"] == f"d/{name.replace(',', '')}"

    def test_lists_of_paths(self) -> None:
        given = "train_datasets=[a b.json, x=1.json,'c,d.json']"
        assert compose(given).train_datasets == ["a b.json", "x=1.json", "c,d.json"]
        assert compose("train_datasets=a.json,b c.json").train_datasets == ["a.json", "b c.json"]
        assert compose("special_tokens=[[Q],[P]]").special_tokens == ["[Q]", "[P]"]
        assert compose("train_sampling_rates=[1,0.5]").train_sampling_rates == [1.0, 0.5]

    def test_a_list_may_be_written_with_spaces(self) -> None:
        given = ["train_datasets=[a.json,", "b.json]", "seed=3", "dev_datasets=[c.json", ",", "d.json", "]"]
        config = compose(*given)
        assert (config.train_datasets, config.dev_datasets) == (["a.json", "b.json"], ["c.json", "d.json"])
        assert config.seed == 3


class TestOldKeys:
    def test_each_warns_once_and_names_its_replacement(self, capsys: pytest.CaptureFixture[str]) -> None:
        argv = ["fp16_opt_level=O2", "global_loss_buf_sz=3", "local_rank=-1", "--n_gpu=2"]
        argv += ["encoder.pretrained_file=null", "multi_q_encoder=False"]
        compose(*argv, "global_loss_buf_sz=4")
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == len(argv)
        assert all(line.startswith("warning: ") for line in lines)
        assert "train.precision=fp16 or bf16" in lines[0]

    def test_fp16_is_translated(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert compose("fp16=True").train.precision == "fp16"
        assert "read as train.precision=fp16" in capsys.readouterr().err
        assert compose("fp16=False", "train.precision=bf16").train.precision == "bf16"


class TestWithoutEffect:
    """Nothing is refused: one line names what was given on the command line, what files say is not told."""

    def told(self, capsys: pytest.CaptureFixture[str], *given: str) -> str:
        assert launch("biencoder_train_cfg", TrainCommand, Seen(), list(given)) == 0
        return capsys.readouterr().err

    def test_defaults_and_presets_are_not_told(self, capsys: pytest.CaptureFixture[str]) -> None:
        for given in ("model_file=m dev_datasets=d.json", "train_datasets=t.json", "train=biencoder_nq"):
            assert self.told(capsys, *given.split()) == ""

    def test_a_command_line_of_training_evaluates(self, capsys: pytest.CaptureFixture[str]) -> None:
        training = ["encoder.dropout=0", "train.batch_size=8", "train.learning_rate=1e-5"]
        training += ["train=biencoder_nq"]
        kept = ["train.dev_batch_size=4", "loss.temperature=0.5"]
        assert self.told(capsys, "model_file=m", "dev_datasets=d.json", *training, *kept) == (
            "warning: no effect here: encoder.dropout, train.batch_size, train.learning_rate\n"
        )

    def test_options_of_a_data_set_that_nothing_names_are_told(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        given = ("train_datasets=mine,a.json", "datasets.mine.file=m.json")
        assert self.told(capsys, *given, "datasets.mine.query_prefix=q") == ""
        assert self.told(capsys, *given, "datasets.a.query_prefix=q", "datasets.nq_dev.file=m.json") == (
            "warning: no effect here: datasets.a.query_prefix, datasets.nq_dev.file\n"
        )

    def test_two_that_contradict_each_other_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        train = "train_datasets=t.json"
        for given, named in (
            (["loss.name=a:B", "loss.kl_weight=1"], "loss.kl_weight=1.0 and a user-defined"),
            (["encoder.static_questions=true", "encoder.shared=true"], "encoder.shared=true"),
            (["train.keep=better", "train.eval_at_start=false", "dev_datasets=d"], "train.keep=better and"),
        ):
            assert "are mutually exclusive" in (message := refused(capsys, train, *given))
            assert named in message


class TestMistakes:
    @pytest.mark.parametrize("key", KEYS[::8])
    def test_a_misspelt_key_names_the_right_one(self, key: str, capsys: pytest.CaptureFixture[str]) -> None:
        generator = random.Random(key)
        position = generator.randrange(len(key.rpartition(".")[0]) + 1, len(key))
        letter = generator.choice([other for other in string.ascii_lowercase if other != key[position]])
        for wrong in (
            key[:position] + letter + key[position + 1 :],
            key[:position] + key[position + 1 :],
            key[:position] + letter + key[position:],
        ):
            if wrong not in KEYS:
                message = refused(capsys, f"{wrong}=1")
                assert key in message.partition("did you mean")[2]

    def test_many_mistakes_stay_on_five_lines(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert "and 4 more" in refused(capsys, *(f"nonsense{n}=1" for n in range(7)))

    @pytest.mark.parametrize(
        ("argument", "expected"),
        [
            ("train=biencoder_nqq", "biencoder_nq"),
            ("encoder=bert", "hf_bert"),
            ("train.batch_size=0", "at least 1"),
            ("train.batch_size=abc", "train.batch_size=abc is not a whole number\n"),
            ("train.learning_rate=fast", "train.learning_rate=fast is not a number\n"),
            ("encoder.shared=maybe", "encoder.shared=maybe is not true or false\n"),
            ("special_token=x", "did you mean datasets (as datasets.NAME.OPTION)?"),
            ("--multirun", "one command runs one job"),
            ("train.precision=fp8", "fp32, bf16, fp16"),
            ("seed=null", "seed does not accept null"),
            ("train.batch_size=1,2", "train.batch_size=1,2"),
            ("train.batch_size={", "train.batch_size={"),
            ("train_datasets=", "train_datasets=null"),
            ("train_datasets", "train_datasets needs a value"),
            ("data/train.json", "train_datasets=data/train.json"),
            ("=3", "=3"),
            ("+new_key=3", "new_key"),
            ("~train.batch_size", "train.batch_size"),
            ("--config-dir=nowhere", "nowhere"),
            ("--cfg", "--cfg needs a value"),
        ],
    )
    def test_message_names_what_is_wrong(
        self, argument: str, expected: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert expected in refused(capsys, argument)

    @hypothesis.given(key=st.sampled_from(KEYS), value=st.text(max_size=8) | st.sampled_from(ODD_VALUES))
    @hypothesis.settings(
        max_examples=examples(8),
        deadline=None,
        derandomize=True,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def test_any_value_is_taken_or_refused_in_five_lines(
        self, key: str, value: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        code = launch("biencoder_train_cfg", TrainCommand, Seen(), [f"{key}={value}"])
        message = capsys.readouterr().err
        assert code in (0, 2)
        assert len(message.strip().splitlines()) <= 5
        assert "Traceback" not in message


@pytest.mark.parametrize(
    ("name", "value"),
    [("RANK", "x"), ("LOCAL_RANK", "-1"), ("LOCAL_RANK", ""), ("WORLD_SIZE", "2.5"), ("RANK", "9" * 5000)],
)
def test_a_malformed_variable_of_the_launcher_is_one_sentence(
    name: str, value: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.setenv(variable, "0" if variable != "WORLD_SIZE" else "1")
    monkeypatch.setenv(name, value)

    def job(config: TrainCommand) -> None:
        with process_group("cpu"):
            raise AssertionError("it was joined")

    assert launch("biencoder_train_cfg", TrainCommand, job, []) == 2
    message = capsys.readouterr().err
    assert (
        f"the environment has {name}={value[:40]!r}, not a number of at least 0" in message
        and "Traceback" not in message
    )


class TestEndings:
    def end(self, error: BaseException) -> int:
        def job(config: TrainCommand) -> None:
            raise error

        return launch("biencoder_train_cfg", TrainCommand, job, [])

    def test_errors_for_a_person_have_no_traceback_others_have_and_each_its_code(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert self.end(InputError("not JSON", file="a.jsonl", line=4)) == 3
        assert capsys.readouterr().err == "error: a.jsonl:4: not JSON\n"
        assert self.end(DivergedError("loss is nan")) == 4
        assert self.end(KeyboardInterrupt()) == 130
        assert self.end(RuntimeError("boom")) == 1
        message = capsys.readouterr().err
        assert "Traceback" in message and "boom" in message


class TestHelp:
    def test_every_setting_with_its_meaning(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "140")
        assert launch("biencoder_train_cfg", TrainCommand, Seen(), ["--help=all"]) == 0
        text = capsys.readouterr().out
        assert [key for key in KEYS if key not in text] == []
        assert "Questions per step and rank." in text
        assert "(fp32|bf16|fp16)" in text and "(number, seconds, at least 1)" in text
        assert "(number, above 0)" in text and "|idf_sqrt|module:Class)" in text
        assert "biencoder_default, biencoder_local, biencoder_nq" in text
        assert max(map(len, text.splitlines())) <= 140

    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_long_list_begins_with_a_few(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        kind = COMMANDS[name].settings_class()
        keys = [entry.key for entry in settings(kind)]
        assert len(keys) <= 26 or hasattr(kind, "FIRST")
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        shown = [key for key in keys if re.search(rf"^  {re.escape(key)}[=\s]", text, re.MULTILINE)]
        if first := getattr(kind, "FIRST", ""):
            assert sorted(shown) == sorted(first.split()) and len(shown) <= 12
            assert "--help=all lists the rest" in text
        else:
            assert len(shown) == len([entry for entry in settings(kind) if not entry.rule.operand])

    def test_a_section_alone(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["train", "--help=loss"]) == 0
        text = capsys.readouterr().out
        assert "loss.kl_weight=0.0" in text and "train.batch_size" not in text
        assert main(["train", "--help=los"]) == 2
        assert "--help=los: no such section or setting; did you mean loss?" in capsys.readouterr().err


@pytest.mark.parametrize(("flags", "expected"), [([], "IW"), (["-q"], "W"), (["-v"], "DIW")])
def test_how_much_is_said(
    flags: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def job(config: TrainCommand) -> None:
        logger = logging.getLogger("dpr.jobs")
        logger.debug("said")
        logger.info("said")
        logger.warning("said")

    assert launch("biencoder_train_cfg", TrainCommand, job, flags) == 0
    assert "".join(re.findall("(?m) ([DIW]) said$", capsys.readouterr().err)) == expected
