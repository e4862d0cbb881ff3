"""Training and use of dense-retrieval bi-encoders. Public API: ``from dpr import BiEncoder, BiEncoderTrainer,
open_training_set``.

Names are imported when they are first used, so ``import dpr`` loads nothing heavy.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dpr.core.cores import quota, usable_cores
from dpr.core.version import __version__ as __version__

# onnxruntime reads this once, when anything imports it. Otherwise it records its platform in the home folder,
# to send it to Microsoft.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:  # what editors and type checkers see: the names of _MODULES
    from dpr.core.distributed import process_group as process_group
    from dpr.core.errors import CheckpointError as CheckpointError
    from dpr.core.errors import ConfigError as ConfigError
    from dpr.core.errors import DivergedError as DivergedError
    from dpr.core.errors import DprError as DprError
    from dpr.core.errors import InputError as InputError
    from dpr.core.errors import LostRankError as LostRankError
    from dpr.core.errors import OutputError as OutputError
    from dpr.core.errors import StopRequested as StopRequested
    from dpr.core.records import Origin as Origin
    from dpr.core.records import Passage as Passage
    from dpr.core.records import Question as Question
    from dpr.core.records import TrainingSample as TrainingSample
    from dpr.data.pairs import PairMaker as PairMaker
    from dpr.data.pairs import PseudoPairs as PseudoPairs
    from dpr.data.settings import DataSetSettings as DataSetSettings
    from dpr.data.training_data import TrainingData as TrainingData
    from dpr.evaluation.comparison import compare as compare
    from dpr.evaluation.ranking_metrics import evaluate_questions as evaluate_questions
    from dpr.evaluation.ranking_metrics import format_table as format_table
    from dpr.evaluation.ranking_metrics import mean_metrics as mean_metrics
    from dpr.evaluation.significance import paired_test as paired_test
    from dpr.export.sentence_transformers import to_sentence_transformer as to_sentence_transformer
    from dpr.formats.corpora import read_passages as read_passages
    from dpr.formats.corpora import write_passages as write_passages
    from dpr.formats.question_sets import read_qrels as read_qrels
    from dpr.formats.question_sets import read_questions as read_questions
    from dpr.formats.training_files.dpr import write_training_set as write_training_set
    from dpr.formats.training_sets import open_training_set as open_training_set
    from dpr.indexer.registry import Index as Index
    from dpr.integrations.mteb import MtebModel as MtebModel
    from dpr.losses.candidates import score_matrix as score_matrix
    from dpr.losses.protocol import Loss as Loss
    from dpr.losses.protocol import LossResult as LossResult
    from dpr.losses.protocol import Term as Term
    from dpr.mining.hard_negatives import mine_hard_negatives as mine_hard_negatives
    from dpr.models.biencoder import BiEncoder as BiEncoder
    from dpr.models.biencoder import TowerOptions as TowerOptions
    from dpr.models.pooling import MeanPooling as MeanPooling
    from dpr.models.settings import EncoderSettings as EncoderSettings
    from dpr.preparation.new_encoder import EncoderShape as EncoderShape
    from dpr.preparation.new_encoder import new_encoder as new_encoder
    from dpr.retrieval.evaluation import evaluate as evaluate
    from dpr.retrieval.hits import Hit as Hit
    from dpr.retrieval.retriever import Retriever as Retriever
    from dpr.training.bi_encoder_trainer import BiEncoderTrainer as BiEncoderTrainer
    from dpr.training.callbacks import Callback as Callback
    from dpr.training.callbacks.early_stopping import EarlyStopping as EarlyStopping
    from dpr.training.callbacks.saving import LoadBest as LoadBest
    from dpr.training.settings import LossSettings as LossSettings
    from dpr.training.settings import TrainingSettings as TrainingSettings
    from dpr.training.validations.protocol import Validation as Validation

# OpenMP's threads spin while they wait for each other, by default ten times as long. If other programs use
# the cores too, the awaited thread is often not running, and all that time is lost. The value is read when
# torch is imported.
if "OMP_WAIT_POLICY" not in os.environ:
    os.environ.setdefault("GOMP_SPINCOUNT", "30000")

# torch computes with as many threads as the machine has cores, even in a container that may use fewer of
# them.
if quota() is not None:
    os.environ.setdefault("OMP_NUM_THREADS", str(usable_cores()))

_MODULES = {
    "dpr.core.distributed": "process_group",
    "dpr.core.errors": (
        "CheckpointError ConfigError DivergedError DprError InputError LostRankError OutputError"
        " StopRequested"
    ),
    "dpr.core.records": "Origin Passage Question TrainingSample",
    "dpr.data.settings": "DataSetSettings",
    "dpr.data.pairs": "PairMaker PseudoPairs",
    "dpr.data.training_data": "TrainingData",
    "dpr.evaluation.comparison": "compare",
    "dpr.evaluation.ranking_metrics": "evaluate_questions format_table mean_metrics",
    "dpr.evaluation.significance": "paired_test",
    "dpr.export.sentence_transformers": "to_sentence_transformer",
    "dpr.formats.corpora": "read_passages write_passages",
    "dpr.formats.question_sets": "read_qrels read_questions",
    "dpr.formats.training_files.dpr": "write_training_set",
    "dpr.formats.training_sets": "open_training_set",
    "dpr.indexer.registry": "Index",
    "dpr.integrations.mteb": "MtebModel",
    "dpr.losses.candidates": "score_matrix",
    "dpr.losses.protocol": "Loss LossResult Term",
    "dpr.mining.hard_negatives": "mine_hard_negatives",
    "dpr.models.biencoder": "BiEncoder TowerOptions",
    "dpr.models.pooling": "MeanPooling",
    "dpr.models.settings": "EncoderSettings",
    "dpr.preparation.new_encoder": "EncoderShape new_encoder",
    "dpr.retrieval.evaluation": "evaluate",
    "dpr.retrieval.hits": "Hit",
    "dpr.retrieval.retriever": "Retriever",
    "dpr.training.bi_encoder_trainer": "BiEncoderTrainer",
    "dpr.training.callbacks": "Callback",
    "dpr.training.callbacks.early_stopping": "EarlyStopping",
    "dpr.training.callbacks.saving": "LoadBest",
    "dpr.training.settings": "LossSettings TrainingSettings",
    "dpr.training.validations.protocol": "Validation",
}
_HOME = {name: module for module, names in _MODULES.items() for name in names.split()}
__all__ = sorted(_HOME)

if not TYPE_CHECKING:  # type checkers would take any name for one that is there

    def __getattr__(name: str) -> Any:
        if name == "SetOptions":  # an AttributeError's words would be lost in "from dpr import ..."
            raise ImportError(
                "SetOptions is dpr.DataSetSettings; it takes no namespace, and query_suffix is"
                " query_special_suffix"
            )
        from dpr.core.other_names import hint

        if name != "export" and name not in _HOME and (line := hint(name)):
            raise ImportError(f"dpr has no {name}{line}")
        if name not in _HOME:
            raise AttributeError(f"module 'dpr' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_HOME[name]), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
