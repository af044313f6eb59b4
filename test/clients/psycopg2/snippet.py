import psycopg2
from psycopg2.extras import Json

db = psycopg2.connect("")       # "with db" is a transaction


def create_order(key, user, order):
    with db, db.cursor() as cursor:
        cursor.execute(
            "SELECT outcome, response_code, response_body"
            " FROM idem_claim('create_order', %s, %s, request => %s, wait => '1 s')",
            (key, user, Json(order)))
        outcome, code, body = cursor.fetchone()
        if outcome == "claimed":
            cursor.execute("INSERT INTO orders (customer, item) VALUES (%s, %s) RETURNING id",
                           (user, order["item"]))
            (number,) = cursor.fetchone()
            code, body = 201, f'{{"order": {number}}}'
            cursor.execute("SELECT idem_finish('create_order', %s, %s, response_code => %s,"
                           " response_body => %s)", (key, user, code, body))
    # only here, after COMMIT, may the answer leave
    return (code, body) if outcome in ("claimed", "replayed") else problem(outcome)


def charge(key, user, amount):
    with db, db.cursor() as cursor:
        cursor.execute(
            "SELECT outcome, token, response_code, response_body"
            " FROM idem_claim('charge', %s, %s, request => %s, lease => '60 s')",
            (key, user, Json({"amount": amount})))
        outcome, token, code, body = cursor.fetchone()
    if outcome == "claimed":
        reference = ask_provider(amount)        # outside of any transaction
        code, body = 201, f'{{"charge":"{reference}"}}'
        with db, db.cursor() as cursor:
            cursor.execute("INSERT INTO payments VALUES (%s, %s, %s)", (key, reference, amount))
            cursor.execute("SELECT idem_finish('charge', %s, %s, token => %s, response_code => %s,"
                           " response_body => %s)", (key, user, token, code, body))
    return (code, body) if outcome in ("claimed", "replayed") else problem(outcome)


def problem(outcome):
    return 422 if outcome == "mismatch" else 409, outcome


def ask_provider(amount):
    return f"ch_{amount}"


for _ in range(2):
    print(*create_order("k-1", "42", {"item": "tea"}))
    print(*charge("k-2", "42", 500))
