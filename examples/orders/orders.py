#!/usr/bin/python3
"""Taking orders, each exactly once: the transactional claim in an application.

Read place_order().  The claim, the order and the answer are one transaction:

    claim the key          somebody else's claim, or an answer stored earlier,
                           comes back as a row: nothing blocks, nothing raises
    write the order        only the one caller that got "claimed"
    finish with the answer every retry will get these very bytes
    COMMIT                 all of it, or (crash, lost connection) nothing

So a client that got no answer just sends the same request again, with the
same Idempotency-Key, until it gets one.

As a program it sends one order, and shows the answer as HTTP would:

    orders.py --customer 42 --key 8f14e45f tea 2      run it twice; then with 3

The database is the one that PGHOST, PGDATABASE and PGUSER name; schema.sql
lays it out.
"""

import argparse
import json
import secrets
from typing import NamedTuple

import psycopg
from psycopg.rows import namedtuple_row
from psycopg.types.json import Jsonb

SCOPE = "create_order"

CLAIM = """
    SELECT * FROM idem_claim(%(scope)s, %(key)s, %(customer)s,
                             request => %(cart)s, wait => %(wait)s)"""

INSERT = """
    INSERT INTO orders (customer, idem_key, cart)
    VALUES (%(customer)s, %(key)s, %(cart)s)
    RETURNING id, placed_at"""

FINISH = """
    SELECT idem_finish(%(scope)s, %(key)s, %(customer)s, token => %(token)s,
                       response_code => %(code)s, response_body => %(body)s,
                       response_headers => %(headers)s)"""


class Answer(NamedTuple):
    """What goes back to the client, and the outcome that it came from."""

    outcome: str
    code: int
    headers: dict
    body: str


def place_order(conn, customer, key, cart, wait="1 s"):
    """One request, one transaction; conn is an ordinary psycopg connection."""
    request = dict(scope=SCOPE, key=key, customer=customer, cart=Jsonb(cart), wait=wait)
    with conn.cursor(row_factory=namedtuple_row) as cur:
        claim = cur.execute(CLAIM, request).fetchone()
        if claim.outcome == "claimed":
            order = cur.execute(INSERT, request).fetchone()
            answer = confirmation(order, cart)
            cur.execute(FINISH, dict(request, token=claim.token, code=answer.code,
                                     body=answer.body, headers=Jsonb(answer.headers)))
        else:
            answer = answer_for(claim)
        conn.commit()
    return answer


def confirmation(order, cart):
    """The answer to an order just written.  The receipt is random: had the
    order been written twice, the answers could not be alike."""
    body = dict(order=order.id, **cart, placed_at=str(order.placed_at),
                receipt=secrets.token_hex(16), thanks="Merci, à bientôt – ¡hasta luego! ☕")
    return Answer("claimed", 201, {"Location": f"/orders/{order.id}"},
                  json.dumps(body, ensure_ascii=False))


def answer_for(claim):
    """The answer to a request that must not run."""
    if claim.outcome == "replayed":
        return Answer(claim.outcome, claim.response_code, claim.response_headers,
                      claim.response_body)
    if claim.outcome == "in_progress":
        return problem(claim, 409, "The first try of this request is still running.",
                       {"Retry-After": "1"})
    if claim.outcome == "mismatch":
        return problem(claim, 422, "This key was used for a different request.")
    return problem(claim, 409, "It is not known how an earlier try ended.")


def problem(claim, code, detail, headers=None):
    """An error in the form of RFC 9457."""
    return Answer(claim.outcome, code,
                  dict(headers or {}, **{"Content-Type": "application/problem+json"}),
                  json.dumps(dict(status=code, title=claim.outcome, detail=detail)))


def main():
    parser = argparse.ArgumentParser(description="Send one order.")
    parser.add_argument("--customer", required=True, help="who asks")
    parser.add_argument("--key", required=True,
                        help="idempotency key: the same on every retry of one order")
    parser.add_argument("item")
    parser.add_argument("qty", type=int)
    args = parser.parse_args()
    with psycopg.connect() as conn:
        answer = place_order(conn, args.customer, args.key, dict(item=args.item, qty=args.qty))
    print(f"HTTP {answer.code} ({answer.outcome})")
    for name, value in answer.headers.items():
        print(f"{name}: {value}")
    print(f"\n{answer.body}")


if __name__ == "__main__":
    main()
