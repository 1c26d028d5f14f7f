"""The process in which one part of one network runs: `python -m tpuflow.pipeline.zoo.worker`.

The request on its input is JSON: `file`, `preset`, `part`, `work`, `record` (where the record goes) and
`head` (what the record says besides its stages, the settings among it). Nothing is printed; what libraries
say goes where the parent lets it.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tpuflow.io.files import write_json
from tpuflow.pipeline.zoo.networks import Network
from tpuflow.pipeline.zoo.stages import Recorder, run_part


def _end_with_parent() -> None:
    """Ends this process once the one that started it is gone: nobody would take the record."""
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def main() -> None:
    """Runs the part the request on standard input asks for."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    request = json.load(sys.stdin)
    file, record, head = Path(request["file"]), Path(request["record"]), request["head"]

    def save(stages: dict[str, Any]) -> None:
        write_json(record, head | {"stages": stages})

    network = Network(head["network"], file, request["preset"])
    run_part(network, request["part"], Path(request["work"]), head["settings"], Recorder(save))
    write_json(record, json.loads(record.read_text(encoding="utf-8")) | {"finished": True})


if __name__ == "__main__":
    main()
