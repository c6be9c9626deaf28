"""Pull the tiny model and stop still at a position, for a test to kill. Arguments: HOME INDEX POSITION."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from fakes.index import open_index
from fakes.progress import Recorder
from ostinato.weights.pull import pull_model

_LONGEST_S = 60.0


def _hang() -> None:
    print("there", flush=True)
    time.sleep(_LONGEST_S)


if __name__ == "__main__":
    os.environ["OSTINATO_HOME"] = sys.argv[1]
    index = open_index(Path(sys.argv[2]))
    pull_model(index.model, Recorder(at=int(sys.argv[3]), act=_hang), fetch=index.fetch)
