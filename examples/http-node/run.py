#!/usr/bin/python3
"""Check this server over HTTP: ../http/conformance.py says how, and what must hold.

Needs a server with the extension, and may create a database and the role
web_shop there; PGHOST, PGPORT, PGUSER name it.
"""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "http"))

from conformance import main  # noqa: E402

if __name__ == "__main__":
    main(HERE, ["node", HERE / "app.js"])
