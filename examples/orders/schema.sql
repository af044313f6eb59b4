-- The shop of the orders example: one table, and a role that can do no more
-- than its work needs.  Run as the owner of the database, after
-- CREATE EXTENSION idempotency.

-- No unique constraint on the key, on purpose: that each order is here once
-- is the extension's doing, and a second one would be there to be counted.
CREATE TABLE orders (
    id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer  text NOT NULL,
    idem_key  text NOT NULL,
    cart      jsonb NOT NULL,
    placed_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

CREATE ROLE shop LOGIN;
GRANT SELECT, INSERT ON orders TO shop;
SELECT idem_grant('shop', 'client');
