import psycopg
from psycopg.types.json import Jsonb

db = psycopg.connect(autocommit=True)


def create_order(key, user, order):
    with db.transaction():
        outcome, code, body = db.execute(
            "SELECT outcome, response_code, response_body"
            " FROM idem_claim('create_order', %s, %s, request => %s, wait => '1 s')",
            (key, user, Jsonb(order))).fetchone()
        if outcome == "claimed":
            (number,) = db.execute(
                "INSERT INTO orders (customer, item) VALUES (%s, %s) RETURNING id",
                (user, order["item"])).fetchone()
            code, body = 201, f'{{"order": {number}}}'
            db.execute("SELECT idem_finish('create_order', %s, %s, response_code => %s,"
                       " response_body => %s)", (key, user, code, body))
    # only here, after COMMIT, may the answer leave
    return (code, body) if outcome in ("claimed", "replayed") else problem(outcome)


def charge(key, user, amount):
    outcome, token, code, body = db.execute(
        "SELECT outcome, token, response_code, response_body"
        " FROM idem_claim('charge', %s, %s, request => %s, lease => '60 s')",
        (key, user, Jsonb({"amount": amount}))).fetchone()
    if outcome == "claimed":
        reference = ask_provider(amount)        # outside of any transaction
        code, body = 201, f'{{"charge":"{reference}"}}'
        with db.transaction():
            db.execute("INSERT INTO payments VALUES (%s, %s, %s)", (key, reference, amount))
            db.execute("SELECT idem_finish('charge', %s, %s, token => %s, response_code => %s,"
                       " response_body => %s)", (key, user, token, code, body))
    return (code, body) if outcome in ("claimed", "replayed") else problem(outcome)


def problem(outcome):
    return 422 if outcome == "mismatch" else 409, outcome


def ask_provider(amount):
    return f"ch_{amount}"


for _ in range(2):
    print(*create_order("k-1", "42", {"item": "tea"}))
    print(*charge("k-2", "42", 500))
