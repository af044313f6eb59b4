"""The same checks for every HTTP server of these examples, over real HTTP.

A server's run.py calls main() with the command that starts it.  The server
finds its database in libpq's environment, and PORT, PROVIDER_PORT, PROVIDER_TIMEOUT,
POOL_TIMEOUT and LEASE.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "lib"))

import faults  # noqa: E402
import protocol  # noqa: E402
import races  # noqa: E402
import transcript  # noqa: E402
from provider import Provider  # noqa: E402
from stage import Checks, Program, Stage, free_ports  # noqa: E402
from wire import Call, Client  # noqa: E402


# So that no answer depends on how fast the machine is.
PATIENT = {"LEASE": "1 h", "PROVIDER_TIMEOUT": "300", "POOL_TIMEOUT": "60"}


class Shop:
    """A server, its database and the provider that it calls."""

    def __init__(self, stage, command):
        self.stage, self.rows, self.value = stage, stage.rows, stage.value
        with stage.connect() as conn:
            conn.execute("CREATE EXTENSION idempotency")
            conn.execute((HERE / "schema.sql").read_text())
            # small, so that a test can exceed it
            conn.execute(f"ALTER DATABASE {stage.database} SET idempotency.max_response = '64kB'")
        self.port, provider_port = free_ports(2)
        self.provider = Provider(provider_port)
        self.alice = Client(self.port, "token-of-alice")
        self.bob = Client(self.port, "token-of-bob")
        self.server = Program(stage, "server", command, port=self.port, env={
            "PORT": str(self.port), "PROVIDER_PORT": str(provider_port), "PGUSER": "web_shop",
            **PATIENT})
        self.server.start()

    def restart(self, **env):
        self.server.kill()
        self.server.start(**env)

    def orders(self, item):
        """How many were taken; an item of its own tells one test from the others."""
        return self.value("SELECT count(*) FROM orders WHERE item = %s", item)

    def stock(self, item, number=1000):
        self.rows("INSERT INTO stock VALUES (%s, %s)", item, number)
        return item

    def state(self, key, user="alice"):
        """The record's stored state, or None."""
        found = self.rows("SELECT state FROM idem_record WHERE key = %s AND principal = %s",
                          key, user)
        return found[0][0] if found else None


def standalone(check, shop):
    """The provider that a README starts to go with its server."""
    port, = free_ports(1)
    Program(shop.stage, "provider", [HERE / "provider.py", port], {}, port).start()
    body = json.dumps({"reference": "r", "amount": 500}).encode()
    reply = Call(port, "POST", "/charges", body).send().answer()
    check.same(reply.status, 500, "the provider runs on its own as well")


def main(directory, command, more=()):
    """more: what to check(check, shop) of this server alone."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--tap", action="store_true", help="print TAP")
    options.add_argument("--keep", action="store_true", help="keep the database and the log")
    arg = options.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))

    check = Checks(arg.tap)
    stage = Stage(directory.name.replace("-", "_"))
    try:
        shop = Shop(stage, command)
        transcript.check(check, shop, directory / "README.md")
        for part in (standalone, protocol.check, *more, races.check, faults.check):
            part(check, shop)
    finally:
        stage.clear(arg.keep)
    sys.exit(0 if check.close() else 1)
