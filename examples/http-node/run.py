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


def parsed_bodies(check, shop):
    """A parser that keeps no bytes must not come first, and the log says so."""
    reply = shop.alice.send("/mistake/parsed", "x-1", {"n": 1})
    check.that(reply.status == 500 and not shop.state("x-1")
               and "before body parsers" in shop.server.log.read_text(),
               "a body whose bytes are gone: 500, and the log says what to do", reply)


if __name__ == "__main__":
    main(HERE, ["node", HERE / "app.js"], [parsed_bodies])
