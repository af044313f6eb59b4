"""The calls that clients make, and the responses that they store."""

import json
from dataclasses import dataclass
from typing import Optional

from . import history
from .session import literal

PRINCIPAL = "42"

# Everything as text, and the bodies in hexadecimal, so that each kind of
# client sees the same bytes.
ROW = """outcome, state, attempt::text, token::text, response_code::text,
 encode(convert_to(response_body, 'UTF8'), 'hex'), response_headers::text,
 encode(response_bytes, 'hex')"""
LOOKUP_ROW = ROW.replace("token::text", "NULL")

CLAIM = f"SELECT {ROW} FROM idem_claim($1, $2, $3, $4::jsonb, wait => $5::interval)"
LEASED_CLAIM = f"""SELECT {ROW} FROM idem_claim($1, $2, $3, $4::jsonb, wait => $5::interval,
 lease => $6::interval, on_abandon => $7, claim_token => $8::uuid)"""
LOOKUP = f"SELECT {LOOKUP_ROW} FROM idem_lookup($1, $2, $3)"
TAKEOVER = f"SELECT {ROW} FROM idem_takeover($1, $2, $3, lease => $4::interval)"
EXECUTE = f"""SELECT {ROW} FROM idem_execute($1, $2, $3, $4::jsonb, command => $5,
 wait => $6::interval)"""
FINISH = """SELECT idem_finish($1, $2, $3, token => $4::uuid, response_code => $5::int,
 response_body => $6, response_headers => $7::jsonb, response_bytes => $8::bytea)::text"""
RELEASE = "SELECT idem_finish($1, $2, $3, token => $4::uuid, state => 'released')::text"

EFFECT = "INSERT INTO effect VALUES ($1, $2, $3)"

SETUP = """
CREATE EXTENSION idempotency;
CREATE TABLE effect (scope text, key text, op text);
CREATE INDEX ON effect (scope, key);
"""


def request(key):
    return json.dumps({"order": key, "amount": 5})


@dataclass
class Answer:
    outcome: str
    state: Optional[str]
    attempt: Optional[int]
    token: Optional[str]
    digest: Optional[str]

    @classmethod
    def of(cls, rows):
        outcome, state, attempt, token, *response = rows[0]
        return cls(outcome, state, attempt and int(attempt), token,
                   history.digest(*response) if outcome == "replayed" else None)

    def seen(self):
        """As the history keeps it."""
        return {"outcome": self.outcome, "attempt": self.attempt, "digest": self.digest}


class Response:
    """A random one; some are long enough to be stored out of line."""

    ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789 '\"\\%|:{}$\n\täßж本"

    def __init__(self, rng, headed=True):
        size = rng.choice((0, 20, 200, 4000))
        self.code = str(rng.choice((200, 201, 204)))
        self.headers = self.body = self.data = None
        if headed:
            self.headers = json.dumps({"Location": f"/orders/{rng.randrange(1 << 30)}"})
        if headed and rng.random() < 0.5:
            self.data = rng.randbytes(size).hex()
        else:
            self.body = "".join(rng.choices(self.ALPHABET, k=size))

    def digest(self):
        body = None if self.body is None else self.body.encode().hex()
        return history.digest(self.code, body, self.headers, self.data)

    def arguments(self):
        data = None if self.data is None else "\\x" + self.data
        return self.code, self.body, self.headers, data

    def command(self, scope, key, op):
        """For idem_execute: the effect, this being its result."""
        values = ", ".join(map(literal, (scope, key, op)))
        return (f"INSERT INTO effect VALUES ({values}) "
                f"RETURNING {literal(self.body)}::text, {self.code}")
