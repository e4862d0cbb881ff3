"""``python -m dpr train ...`` and ``torchrun -m dpr train ...``."""

import sys

from dpr.cli.main import main

sys.exit(main())
