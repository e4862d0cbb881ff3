"""The real command with the faults of DPR_TEST_INJECTIONS, for launchers; only in a group's first life."""

import json
import os
import runpy
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]

if __name__ == "__main__":
    sys.path.insert(0, str(REPOSITORY))
    from tests.faults import injections

    if os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        for name, arguments in json.loads(os.environ["DPR_TEST_INJECTIONS"]):
            getattr(injections, name)(**arguments)
    sys.argv[0] = str(REPOSITORY / "train_dense_encoder.py")
    runpy.run_path(sys.argv[0], run_name="__main__")
