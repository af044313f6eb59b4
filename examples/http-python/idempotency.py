"""Idempotency-Key for Flask, on the PostgreSQL extension idempotency.

Implements draft-ietf-httpapi-idempotency-key-header.  A handler is wrapped in
one of two ways, and returns what any Flask handler returns:

    @idempotent(database_only=True)     all it does is in this database:
    def order(db): ...                  claim, rows and answer, one transaction

    @idempotent()                       it does something outside, or you cannot
    def pay(claim): ...                 tell: the claim is leased and committed
        charge = provider.charge(claim.reference, ...)    # no transaction open
        return claim.settle(lambda db: ...)               # rows and answer, one transaction

What is stored, by the status of the answer:

    2xx, 3xx   the answer, with the handler's rows
    4xx        the answer alone: a refusal is replayed too, and leaves no rows
    408, 425,  nothing: they ask for another try.  All rolls back, or the claim is
    429        released, and the same key runs again
    5xx, or    nothing where database_only: all of it rolls back, and the same key
    exception  runs again.  Else "unknown": the key waits for somebody to find out

An HTTPException of Werkzeug, as abort() and get_json() raise it, is an answer of
its status like one that is returned.  Raise NotDone where nothing was sent or
done for certain: the same key runs again, leased or not.  A stream cannot be
stored: leave such a route unwrapped.
"""

import functools
import hashlib
import io
import re
import uuid
from urllib.parse import quote

import psycopg
from flask import current_app, make_response, request
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb
from werkzeug.exceptions import HTTPException
from werkzeug.wsgi import get_input_stream

from answers import NotDone, Refused, answer_for, key_of, problem

REPLAYED_HEADERS = {"content-type", "location", "etag", "link"}  # never cookies or credentials

CLAIM = """
    SELECT * FROM idem_claim(%(scope)s, %(key)s, %(principal)s, ttl => '24 h',
        lease => %(lease)s, claim_token => %(token)s, request => jsonb_build_object(
            'method', %(method)s::text, 'target', %(target)s::text,
            'json', %(json)s::text::jsonb, 'sha256', %(sha256)s::text))"""
FINISH = """
    SELECT idem_finish(%(scope)s, %(key)s, %(principal)s, token => %(token)s, state => %(state)s,
        response_code => %(code)s, response_headers => %(headers)s, response_bytes => %(body)s)"""
LOOKUP = "SELECT * FROM idem_lookup(%(scope)s, %(key)s, %(principal)s)"

NOT_JSONB = {"22P02", "22P05", "22003", "54000", "54001"}  # no JSON, or none that jsonb holds
UNAVAILABLE = re.compile("08|40|53|57P|57014|25006")

TRY_AGAIN = {408, 425, 429}


class Idempotency:
    """pool: a psycopg_pool.ConnectionPool; principal(): the authenticated user;
    scope: what keys are unique in, for each user; lease: longer than any handler runs."""

    def __init__(self, pool, principal, scope="http", lease="60 s", max_body=131072):
        self.pool, self.principal, self.scope = pool, principal, scope
        self.lease, self.max_body = lease, max_body

    def __call__(self, database_only=False):
        run = self.transactional if database_only else self.leased

        def wrap(handler):
            @functools.wraps(handler)
            def wrapped(**path):
                try:
                    return run(functools.partial(handler, **path))
                except Refused as refused:
                    return refused.response
                except psycopg.Error as error:
                    return database_problem(error)
            return wrapped
        return wrap

    def transactional(self, handler):
        """Whatever is raised rolls back everything, the claim included."""
        identity = self.identify(lease=None, token=None)
        with self.pool.connection() as db, db.transaction():
            record = claim(db, identity)
            if record.outcome != "claimed":
                return answer_for(record)
            response = work(db, handler)
            if response.status_code >= 500:
                raise NotDone(response)
            finish(db, identity, response)
        return response  # only now: COMMIT has succeeded

    def leased(self, handler):
        # A token for this attempt alone, made outside the loop: should the answer
        # to the claim get lost, the same claim again is the same claim.
        identity = self.identify(lease=self.lease, token=uuid.uuid4())
        for last in (False, True):
            try:
                with self.pool.connection() as db:
                    record = claim(db, identity)
                break
            except psycopg.OperationalError:
                if last:
                    raise
        if record.outcome != "claimed":
            return answer_for(record)
        owned = Claim(self.pool, identity | {"token": record.token}, record)
        try:
            response = respond(handler, owned)
            return response if owned.settled else owned.settle(lambda _: response)
        except NotDone as error:
            state, response = "released", error.response
        except Exception:
            current_app.logger.exception("outcome unknown")
            state, response = "unknown", problem("outcome-unknown", status=500)
        return owned.give_up(state, response)

    def identify(self, **more):
        """Who asks for what, under which key."""
        body = self.read_body()
        principal = self.principal()
        if not principal:  # or all who are not logged in would share their keys
            raise Refused(problem("not-authenticated"))
        as_json = request.is_json and body and is_text(body)
        return more | dict(
            scope=self.scope, key=key_of(request.headers.get("Idempotency-Key")),
            principal=str(principal), method=request.method, target=quote(request.full_path),
            # JSON goes to the database as it came, where its values are compared: to
            # parse it here would round its numbers.  Anything else is compared by its bytes.
            json=body.decode() if as_json else None,
            sha256=None if as_json else hashlib.sha256(body).hexdigest())

    def read_body(self):
        if "stream" in vars(request):
            body = body_read_before()
        else:
            body = self.read_at_most(self.max_body + 1)
        if len(body) > self.max_body:
            raise Refused(problem("request-too-large"))
        return body

    def read_at_most(self, size):
        """And put it back, for the handler."""
        stream, body = get_input_stream(request.environ), b""
        while more := stream.read(size - len(body)):
            body += more
        request.environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return body


class Claim:
    """What the handler of a leased claim gets."""

    def __init__(self, pool, identity, record):
        self.pool, self.identity, self.settled = pool, identity, False
        self.attempt, self.recovered = record.attempt, record.recovered
        # What a provider should know this by: the same on every attempt.
        parts = [identity[name].encode() for name in ("scope", "key", "principal")]
        self.reference = hashlib.sha256(
            b"".join(bytes([len(part)]) + part for part in parts)).hexdigest()[:32]

    def settle(self, rows_and_answer):
        """Run rows_and_answer(db) and store its answer, in one transaction.  If
        another has replaced us (ID001), the rows roll back."""
        with self.pool.connection() as db, db.transaction():
            response = work(db, rows_and_answer)
            finish(db, self.identity, response)
        self.settled = True
        return response

    def give_up(self, state, response):
        """After an exception.  The handler's rows have rolled back, unless it
        was COMMIT's answer that got lost; then, or if replaced, the record tells."""
        try:
            with self.pool.connection() as db:
                fetch(db, FINISH, self.identity, state=state, code=None, headers=None, body=None)
        except psycopg.Error as error:
            if error.sqlstate == "ID001":
                with self.pool.connection() as db:
                    return answer_for(fetch(db, LOOKUP, self.identity))
            current_app.logger.exception("not recorded; it will read as unknown")
        return response


def work(db, handler):
    """The handler's answer; of a refusal its rows are rolled back."""
    with db.transaction() as savepoint:
        response = respond(handler, db)
        if response.status_code in TRY_AGAIN:
            raise NotDone(response)
        if response.status_code >= 400:
            raise psycopg.Rollback(savepoint)
    return response


def respond(handler, argument):
    """The handler's answer, be it returned or raised."""
    try:
        answer = handler(argument)
    except HTTPException as error:
        answer = current_app.handle_http_exception(error)  # the application's page, if it has one
        if isinstance(answer, HTTPException):
            answer = answer.get_response()
    response = make_response(answer)
    if response.is_streamed:
        raise TypeError("a stream cannot be stored: do not wrap this route")
    return response


def finish(db, identity, response):
    status = response.status_code
    state = "succeeded" if status < 400 else "failed" if status < 500 else "unknown"
    stored = dict(code=status, body=response.get_data(), headers=Jsonb(
        {name: value for name, value in response.headers if name.lower() in REPLAYED_HEADERS}))
    fetch(db, FINISH, identity, state=state,
          **(stored if state != "unknown" else dict.fromkeys(stored)))


def claim(db, identity):
    try:
        return fetch(db, CLAIM, identity)
    except psycopg.Error as error:
        if error.sqlstate == "22023" and error.diag.column_name == "key":
            raise Refused(problem("idempotency-key-invalid")) from None
        if identity["json"] is not None and error.sqlstate in NOT_JSONB:
            raise Refused(problem("not-json")) from None
        raise


def fetch(db, statement, identity, **more):
    return db.cursor(row_factory=namedtuple_row).execute(statement, identity | more).fetchone()


def database_problem(error):
    """What was begun has rolled back, so the same key is safe if the database is
    merely away or busy; anything else is for the application's error handler."""
    away = isinstance(error, psycopg.OperationalError) and not error.sqlstate
    if away or UNAVAILABLE.match(error.sqlstate or ""):
        current_app.logger.warning("database unavailable: %s", error)
        return problem("unavailable")
    raise error


def body_read_before():
    """Two requests whose bytes are gone would look the same."""
    body = request.get_data()
    if not body and (request.content_length or "Transfer-Encoding" in request.headers):
        raise RuntimeError("something else has read the body: let it use request.get_data()"
                           " before request.form or request.stream, which keep no bytes")
    return body


def is_text(body):
    try:
        return "\0" not in body.decode()
    except UnicodeDecodeError:
        return False
