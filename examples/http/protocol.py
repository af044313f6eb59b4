"""One request at a time: keys, users, replays, mismatches, refusals, errors."""

import json

from wire import Call

JSON = "application/json"


def check(check, shop):
    for part in (keys, users, replays, mismatches, database_only, leased, refusals, try_again,
                 read_before, limits, streams):
        part(check, shop)


def keys(check, shop):
    send, tea = shop.alice.send, {"item": "tea", "qty": 1}
    records = shop.value("SELECT count(*) FROM idem_record")
    missing = send("/orders", None, tea)
    check.same(missing.verdict, (400, "idempotency-key-missing"), "no key: 400")
    for what, key in [
            ("empty", ""), ("an empty string", '""'), ("half a string", '"k'),
            ("a bare quote", 'k"k'),
            ("two keys in a line", '"a", "b"'), ("two bare keys in a line", "a, b"),
            ("a blank inside", "a b"), ("a wrong escape", r'"a\b"'),
            ("UTF-8 in a string", '"schlüssel"'), ("UTF-8, bare", "schlüssel"),
            ("a byte that is no text", b"\xff"), ("a display string", '%"f%c3%bc"'),
            ("bytes", ":cHJldGVuZA==:;"), ("parameters that are none", '"a"; B'),
            ("a parameter that is half a string", '"a"; b="c'),
            ("256 bytes", f'"{"k" * 256}"'), ("4000 bytes", "k" * 4000)]:
        reply = send("/orders", key, tea)
        check.same(reply and reply.verdict, (400, "idempotency-key-invalid"), f"key is {what}: 400")
    twice = send("/orders", '"a"', tea, more=[("Idempotency-Key", '"b"')])
    check.same(twice.verdict, (400, "idempotency-key-invalid"), "two headers: 400")
    check.same(shop.value("SELECT count(*) FROM idem_record"), records,
               "none of them left a record")

    for what, key, stored in [
            ("a string", '"key 1"', "key 1"), ("with escapes", r'"say \"a\\b\""', r'say "a\b"'),
            ("with parameters", '"key 2"; v=1;w', "key 2"),
            ("with parameters that are strings", r'"key 4"; a="x; \"y\"";b=%"%c3%bc";c', "key 4"),
            ("bare", "key-3", "key-3"),
            ("a UUID", "8e03978e-40d5-43e8-bc93-6894a57f9324", None),
            ("255 bytes", "k" * 255, None)]:
        reply = send("/orders", key, tea)
        check.that(reply.status == 201 and shop.state(stored or key) == "succeeded",
                   f"key is {what}: taken as {stored or 'it is'}", reply)
    check.that(send("/orders", '"key-3"', tea).replayed, "bare and as a string it is the same key")


def users(check, shop):
    item = shop.stock("two users")
    body = {"item": item, "qty": 1}
    hers, his = (who.send("/orders", "shared", body) for who in (shop.alice, shop.bob))
    check.that(hers.status == his.status == 201 and hers.body != his.body
               and not his.replayed and shop.orders(item) == 2, "two users, one key: two orders")
    his_own = shop.bob.send("/orders", "shared", {"item": item, "qty": 2})
    check.same(his_own.verdict, (422, "idempotency-key-reused"), "each is held to his own request")
    for what, headers in [("no user", []), ("a wrong token", [("Authorization", "Bearer guess")])]:
        reply = Call(shop.port, "POST", "/orders", json.dumps(body).encode(), headers + [
            ("Idempotency-Key", "shared"), ("Content-Type", JSON)]).send().answer()
        check.that(reply.verdict == (401, "not-authenticated")
                   and "www-authenticate" in reply.headers, f"{what}: 401", reply)


def replays(check, shop):
    item = shop.stock("replays")
    first = shop.alice.send("/orders", '"again"', {"item": item, "qty": 2})
    check.that(first.status == 201 and not first.replayed and "set-cookie" in first.headers,
               "the first answer is the handler's", first)
    for what, key, body in [("the same bytes", '"again"', {"item": item, "qty": 2}),
                            ("other spelling", "again", b'{ "qty":2.0,"item":"repl\\u0061ys"}')]:
        reply = shop.alice.send("/orders", key, body)
        check.that(reply.replayed and reply.essence == first.essence,
                   f"retried with {what}: status, headers and body are those", reply)
        check.that("set-cookie" not in reply.headers, "the cookie is not handed out again")
    check.same(shop.orders(item), 1, "one order")

    content = bytes(range(256)) * 3
    hers = shop.alice.send("/notes", "n-1", content, "application/octet-stream")
    again = shop.alice.send("/notes", "n-1", content, "application/octet-stream")
    check.that(hers.body == content and again.replayed and again.essence == hers.essence,
               "bodies of any bytes are replayed byte for byte")
    empty = [shop.alice.send("/notes", "n-2", b"", "text/plain") for _ in range(2)]
    check.that(empty[1].replayed and empty[0].essence == empty[1].essence, "an empty one as well")


def mismatches(check, shop):
    send, item = shop.alice.send, shop.stock("mismatches")
    body = {"item": item, "qty": 1, "n": 1}
    number = b'{"item": "mismatches", "qty": 1, "n": %d}'
    send("/orders", "m-1", body)
    send("/orders", "m-2", number % 9007199254740993)
    send("/notes", "m-3", b"one", "text/plain")
    for what, arguments in [
            ("another body", ("/orders", "m-1", body | {"qty": 2})),
            ("another path", ("/notes", "m-1", body)),
            ("another query", ("/orders?dry=1", "m-1", body)),
            ("a number that differs in the 16th digit", ("/orders", "m-2",
                                                         number % 9007199254740992)),
            ("other bytes", ("/notes", "m-3", b"two", "text/plain")),
            ("another method", ("/notes", "m-3", b"one", "text/plain", "PUT"))]:
        reply = send(*arguments)
        check.that(reply.verdict == (422, "idempotency-key-reused")
                   and json.loads(reply.body)["new_key_is_safe"], f"{what}: 422", reply)
    check.that(send("/notes", "m-3", b"one", "application/xml").replayed,
               "the same bytes under another type are the same request")
    check.same(shop.orders(item), 2, "none of them did anything")
    for what, bad in [("cut off", b'{"item": "te'), ("NUL", b'{"item": "a\\u0000"}'),
                      ("a number beyond all bounds", b'{"qty": 1e999999999}'),
                      ("nested without end", b"[" * 60000)]:
        reply = send("/orders", "bad-json", bad)
        check.same(reply and reply.verdict, (400, "not-json"), f"JSON that is {what}: 400")
    check.same(shop.state("bad-json"), None, "and no record")


def database_only(check, shop):
    send, rows = shop.alice.send, shop.rows
    mug = {"item": "mug", "qty": 2}
    first = send("/orders", "d-1", mug)
    rows("UPDATE stock SET left_over = 10 WHERE item = 'mug'")
    again = send("/orders", "d-1", mug)
    check.that(first.status == 409 and again.replayed and again.essence == first.essence
               and shop.state("d-1") == "failed", "a refusal (409) is replayed", again)
    check.same(shop.orders("mug"), 0, "and the handler's rows are not there")

    tin = {"item": "tin", "qty": 1}
    check.same(send("/orders", "d-2", tin).status, 503, "a 503 of the handler goes out")
    check.that(shop.state("d-2") is None and shop.orders("tin") == 0, "and nothing is stored")
    rows("UPDATE stock SET left_over = 10 WHERE item = 'tin'")
    check.that(send("/orders", "d-2", tin).status == 201 and shop.orders("tin") == 1,
               "so the same key runs again")

    rows("ALTER TABLE orders RENAME TO elsewhere")  # the handler's INSERT fails
    check.same(send("/orders", "d-3", tin).status, 500, "an exception: 500")
    rows("ALTER TABLE elsewhere RENAME TO orders")
    check.that(shop.state("d-3") is None and shop.orders("tin") == 1, "and nothing is stored")


def leased(check, shop):
    send, before = shop.alice.send, len(shop.provider.asked)

    def asked():
        return len(shop.provider.asked) - before
    declined = [send("/payments", "p-1", {"amount": 5001}) for _ in range(2)]
    check.that(declined[0].status == 402 and declined[1].replayed
               and declined[0].essence == declined[1].essence and asked() == 1,
               "declined: 402, replayed, asked for once")

    check.same(send("/payments", "p-2", {"amount": 500}).status, 502,
               "no verdict from the provider: the handler's 502 goes out")
    reply = send("/payments", "p-2", {"amount": 500})
    check.that(reply.verdict == (409, "outcome-unknown") and "retry-after" not in reply.headers
               and asked() == 2, "the retry is told so, without Retry-After", reply)
    reply = send("/payments", "p-2", {"amount": 600})
    check.that(reply.verdict == (422, "idempotency-key-reused")
               and not json.loads(reply.body)["new_key_is_safe"],
               "a mismatch meanwhile says that a new key is not safe", reply)

    # as an operator does it by hand: neither code nor headers
    shop.rows("SELECT idem_resolve('http', 'p-2', 'alice', state => 'succeeded',"
              " response_body => 'all is well')")
    reply = send("/payments", "p-2", {"amount": 500})
    check.that((reply.status, reply.body, reply.replayed) == (200, b"all is well", True),
               "an operator finds out, and the next retry gets what he stored", reply)

    shop.rows("ALTER TABLE payments RENAME TO elsewhere")
    reply = send("/payments", "p-3", {"amount": 100})
    shop.rows("ALTER TABLE elsewhere RENAME TO payments")
    check.same(reply.verdict, (500, "outcome-unknown"), "an exception after the charge: 500")
    check.that(send("/payments", "p-3", {"amount": 100}).verdict == (409, "outcome-unknown")
               and asked() == 3, "and the retry does not charge again")

    shop.provider.close()
    reply = send("/payments", "p-4", {"amount": 100})
    shop.provider.open()
    check.that(reply.verdict == (503, "not-done") and reply.headers.get("retry-after")
               and shop.state("p-4") == "released",
               "nothing was sent, for certain: released", reply)
    paid = [send("/payments", "p-4", {"amount": 100}) for _ in range(2)]
    check.that(paid[0].status == 201 and paid[1].replayed and paid[0].essence == paid[1].essence
               and asked() == 4, "so the retry pays")
    check.same(shop.value("SELECT count(*) FROM payments"), 1, "one payment in our book")


def refusals(check, shop):
    """Of what the handler raises before anything is done, the client hears why."""
    before = len(shop.provider.asked)
    bad = [("no JSON", b"garbage", "text/plain", {400, 415}),
           ("missing", b"", JSON, {400}), ("no text", b'{"amount": "\xff"}', JSON, {400, 422}),
           ("empty", {}, JSON, {422}), ("no object", [1], JSON, {422}),
           ("null", b"null", JSON, {422}),
           ("nested too deeply", b"[" * 3000 + b"]" * 3000, JSON, {422}),
           ("of the wrong type", {"amount": "1", "item": 1, "qty": True}, JSON, {422}),
           ("beyond the bounds", {"amount": 10**6, "item": "tea", "qty": 2000}, JSON, {422})]
    for target in "/payments", "/orders":
        for number, (what, body, kind, wanted) in enumerate(bad):
            key = f"b{target}-{number}"
            first, again = (shop.alice.send(target, key, body, kind) for _ in range(2))
            check.that(first.status in wanted and not first.replayed and again.replayed
                       and again.essence == first.essence and shop.state(key) == "failed",
                       f"{target} with a body that is {what}: refused, and replayed", first)
    check.that(len(shop.provider.asked) == before and not shop.value(
        "SELECT count(*) FROM idem_unresolved WHERE key LIKE 'b/%'"),
        "the provider was not asked, and nobody has to find out")


def try_again(check, shop):
    """A 429 that is replayed for a day would be no invitation to come again."""
    item = shop.stock("rushed")
    shop.rows("UPDATE stock SET rushed = true WHERE item = 'rushed'")
    order = "/orders", "t-1", {"item": item, "qty": 1}
    payment = "/payments", "t-2", {"amount": 429}
    for what, request, state in ("database only", order, None), ("leased", payment, "released"):
        reply = shop.alice.send(*request)
        check.that(reply.status == 429 and reply.headers.get("retry-after") == "5"
                   and shop.state(request[1]) == state, f"{what}: a 429 goes out, unstored", reply)
    check.same(shop.orders(item), 0, "no rows")
    shop.rows("UPDATE stock SET rushed = false WHERE item = 'rushed'")
    for what, request in ("database only", order), ("leased", payment):
        reply = shop.alice.send(*request)
        check.that(reply.status == 201 and not reply.replayed, f"{what}: the same key runs", reply)

    check.same(shop.alice.send("/payments", "t-3", {"amount": 501}).status, 502,
               "a page instead of a verdict is none: 502")
    check.same(shop.state("t-3"), "unknown", "and unknown")


def read_before(check, shop):
    """What looked at the body before the middleware has left it the bytes."""
    for what, body in ("first", {"n": 1}), ("again", b'{ "n": 1.0 }'), ("other", {"n": 2}):
        reply = shop.alice.send("/parsed", "a-1", body)
        check.that((reply.verdict == (422, "idempotency-key-reused")) if what == "other" else
                   (reply.status, json.loads(reply.body), reply.replayed)
                   == (200, {"got": {"n": 1}}, what == "again"),
                   f"a body read before: {what}", reply)
    check.same(shop.alice.send("/parsed", "a-2", {"n": "x" * 131072}).status, 413,
               "and no larger than any other")


def limits(check, shop):
    send, kind = shop.alice.send, "text/plain"
    check.same(send("/notes", "l-1", b"x" * 131073, kind).verdict, (413, "request-too-large"),
               "a body of 128 KiB and a byte: 413")
    check.same(shop.state("l-1"), None, "before the key is claimed")
    for key, size in [("l-2", 60000), ("l-3", 66000), ("l-4", 131072)]:
        reply = send("/notes", key, b"x" * size, kind)
        fits = size < 65536
        check.same((reply.status, shop.state(key)), (201, "succeeded") if fits else (500, None),
                   f"an answer of {size} bytes, where 64 kB may be stored:"
                   f" {'stored' if fits else '500, and rolled back'}")
    check.same(shop.value("SELECT count(*) FROM notes WHERE length(content) > 65536"), 0,
               "no note without its answer")


def streams(check, shop):
    for key in (None, "s-1"):
        reply = shop.alice.send("/export", key, b"")
        check.that(reply.status == 200 and reply.body.count(b"line") == 3 and not shop.state("s-1"),
                   f"a stream passes by {'without' if key is None else 'with'} a key", reply)
    check.that(shop.alice.send("/mistake", "s-2", b"").status == 500 and not shop.state("s-2")
               and shop.value("SELECT count(*) FROM notes WHERE author = 'nobody'") == 0,
               "a stream from a wrapped handler is refused, and its rows are undone")
