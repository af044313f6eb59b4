"""The control: the same trouble for a handler that looks before it writes.

SELECT, and INSERT if there is nothing: what one writes without thinking of two
requests at once.  It shows that the storm is one, and that a double would be
seen if there was any; the demo fails if this handler got away with it.
"""

from psycopg.types.json import Jsonb

import orders

TABLE = """
    CREATE TABLE control (LIKE orders INCLUDING DEFAULTS INCLUDING IDENTITY);
    GRANT SELECT, INSERT ON control TO shop"""

LOOK = "SELECT id FROM control WHERE idem_key = %s"

WRITE = "INSERT INTO control (customer, idem_key, cart) VALUES (%s, %s, %s) RETURNING id"

DOUBLES = """
    SELECT count(*) FROM (SELECT FROM control GROUP BY idem_key HAVING count(*) > 1) doubled"""


def place_order(conn, customer, key, cart, wait):
    with conn.cursor() as cur:
        found = cur.execute(LOOK, [key]).fetchone()
        if not found:
            found = cur.execute(WRITE, [customer, key, Jsonb(cart)]).fetchone()
        conn.commit()
    return orders.Answer("answered", 201, {}, f'{{"order": {found[0]}}}')


def doubled(admin):
    return admin.execute(DOUBLES).fetchone()[0]
