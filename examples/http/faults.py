"""Clients that hang up, a server that is killed, a worker that was replaced,
a database that is away, and an answer to a claim that gets lost.
"""

import os
import socket
import threading

from races import holding_orders, holding_provider, waiting
from stage import free_ports, wait_until
from wire import broken_off


def check(check, shop):
    for part in (hung_up_early, hung_up_order, hung_up_payment, replaced, killed_order,
                 killed_payment, cancelled, database_away, claim_answer_lost):
        part(check, shop)


def hung_up_early(check, shop):
    item = shop.stock("half")
    call = shop.alice.call("/orders", "f-1", {"item": item, "qty": 1})
    call.send(end=-5).drop()
    reply = shop.alice.send("/orders", "f-1", {"item": item, "qty": 1})
    check.that(reply.status == 201 and not reply.replayed and shop.orders(item) == 1,
               "half a request claims nothing", reply)


def hung_up_order(check, shop):
    item = shop.stock("hung up")
    body = {"item": item, "qty": 1}
    with holding_orders(shop) as inside, broken_off(shop.alice.call("/orders", "f-2", body)):
        wait_until(inside)
    reply = shop.alice.insist("/orders", "f-2", body, [201])
    check.that(reply.replayed and shop.orders(item) == 1,
               "database only: the client hangs up, the work goes on, the retry gets its answer")


def hung_up_payment(check, shop):
    body, before = {"amount": 2000}, len(shop.provider.asked)
    with holding_provider(shop) as inside, broken_off(shop.alice.call("/payments", "f-3", body)):
        wait_until(inside)
    reply = shop.alice.insist("/payments", "f-3", body, [201])
    check.that(reply.replayed and len(shop.provider.asked) - before == 1, "leased: the same")


def replaced(check, shop):
    """An operator decides while the handler is out.  What it brings home is void."""
    body = {"amount": 2001}
    with holding_provider(shop) as inside:
        call = shop.alice.call("/payments", "f-4", body).send()
        wait_until(inside)
        shop.rows("SELECT idem_resolve('http', 'f-4', 'alice', state => 'failed', force => true,"
                  " response_code => 402, response_body => 'cancelled by phone')")
    reply = call.answer()
    check.that((reply.status, reply.body, reply.replayed) == (402, b"cancelled by phone", True),
               "a worker that was replaced answers what the record says", reply)
    check.same(shop.value("SELECT count(*) FROM payments WHERE amount = 2001"), 0,
               "and its rows have rolled back")


def killed_order(check, shop):
    item = shop.stock("killed")
    body = {"item": item, "qty": 1}
    with holding_orders(shop) as inside:
        call = shop.alice.call("/orders", "f-5", body).send()
        wait_until(inside)
        shop.restart()
        check.that(call.answer() is None and waiting(shop),
                   "database only: the server is killed within the transaction")
    reply = shop.alice.insist("/orders", "f-5", body, [201])
    check.that(reply.status == 201 and not reply.replayed and shop.orders(item) == 1,
               "database only: the retry runs it, and it is there once", reply)


def killed_payment(check, shop):
    shop.restart(LEASE="1 s")  # so that it is over while we wait
    body, before = {"amount": 2002}, len(shop.provider.asked)
    with holding_provider(shop) as inside:
        shop.alice.call("/payments", "f-6", body).send()
        wait_until(inside)
        shop.restart(LEASE="1 h")
    seen = []

    def told():
        reply = shop.alice.send("/payments", "f-6", body)
        seen.append((reply.verdict, reply.headers.get("retry-after")))
        return reply.problem == "outcome-unknown"
    check.that(wait_until(told) and set(seen) <= {((409, "request-in-flight"), "1"),
                                                  ((409, "outcome-unknown"), None)},
               "leased: the server is killed with a charge under way: unknown, once the lease is"
               " over", set(seen))
    check.same(len(shop.provider.asked) - before, 1, "leased: no retry charges again")
    shop.rows("SELECT idem_resolve('http', 'f-6', 'alice', state => 'succeeded',"
              " response_code => 201, response_body => '{\"charge\":\"found\"}',"
              " response_headers => '{\"Content-Type\": \"application/json\"}')")
    reply = shop.alice.send("/payments", "f-6", body)
    check.that((reply.status, reply.body, reply.replayed) == (201, b'{"charge":"found"}', True)
               and reply.headers["content-type"] == "application/json",
               "leased: the operator has asked the provider, and the retry gets that answer", reply)


def cancelled(check, shop):
    """As by statement_timeout."""
    item = shop.stock("cancelled")
    body = {"item": item, "qty": 1}
    with holding_orders(shop) as inside:
        call = shop.alice.call("/orders", "f-9", body).send()
        wait_until(inside)
        shop.rows("SELECT pg_cancel_backend(pid) FROM pg_locks"
                  " WHERE relation = 'orders'::regclass AND NOT granted")
        reply = call.answer()
    check.that(reply.verdict == (503, "unavailable") and reply.headers.get("retry-after"),
               "a statement is cancelled: 503 with Retry-After", reply)
    reply = shop.alice.send("/orders", "f-9", body)
    check.that(reply.status == 201 and not reply.replayed and shop.orders(item) == 1,
               "and the same key runs")


def database_away(check, shop):
    item, name = shop.stock("away"), shop.stage.database
    tries = {"/orders": {"item": item, "qty": 1}, "/payments": {"amount": 2003}}
    shop.restart(POOL_TIMEOUT="1")
    shop.stage.admin("ALTER ROLE web_shop CONNECTION LIMIT 0")
    shop.stage.admin("SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity"
                     f" WHERE usename = 'web_shop' AND datname = '{name}'")
    for target, body in tries.items():
        reply = shop.alice.send(target, "f-7" + target[1], body)
        check.that(reply.verdict == (503, "unavailable") and reply.headers.get("retry-after"),
                   f"no database: 503 with Retry-After for {target}", reply)
    shop.stage.admin("ALTER ROLE web_shop CONNECTION LIMIT -1")
    for target, body in tries.items():
        reply = shop.alice.insist(target, "f-7" + target[1], body, [201])
        check.that(not reply.replayed, f"the same key works when it is back: {target}", reply)
    check.same(shop.orders(item), 1, "one order")
    shop.restart(POOL_TIMEOUT="60")


def claim_answer_lost(check, shop):
    proxy = Proxy()
    shop.restart(PGHOST="127.0.0.1", PGPORT=str(proxy.port))
    before = len(shop.provider.asked)
    proxy.lose_answer_to = b"idem_claim"
    reply = shop.alice.send("/payments", "f-8", {"amount": 2004})
    check.that(proxy.lost == 1 and reply.status == 201 and not reply.replayed
               and len(shop.provider.asked) - before == 1,
               "the answer to a claim is lost: claimed again under the same token", reply)
    shop.restart(PGHOST=os.environ["PGHOST"], PGPORT=os.environ.get("PGPORT", "5432"))


class Proxy:
    """Between server and database, to lose the answer to a certain statement."""

    def __init__(self):
        self.port, = free_ports(1)
        self.lose_answer_to, self.lost = None, 0
        self.listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            client, _ = self.listener.accept()
            server = socket.socket(socket.AF_UNIX)
            server.connect(f"{os.environ['PGHOST']}/.s.PGSQL.{os.environ.get('PGPORT', 5432)}")
            doomed = threading.Event()
            for source, sink, watch in ((client, server, True), (server, client, False)):
                threading.Thread(target=self.pump, args=(source, sink, watch, doomed),
                                 daemon=True).start()

    def pump(self, source, sink, watch, doomed):
        try:
            while data := source.recv(65536):
                if watch and self.lose_answer_to and self.lose_answer_to in data:
                    self.lose_answer_to = None
                    doomed.set()
                elif not watch and doomed.is_set() and b"claimed" in data:
                    self.lost += 1
                    break  # the claim has been committed, and nobody hears of it
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
