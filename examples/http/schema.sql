-- The shop behind both HTTP servers.  Run as the owner of the database, after
-- CREATE EXTENSION idempotency.

-- No unique constraint on anything that a client sends, on purpose: that each
-- effect is here once is the extension's doing, and a second one would be here
-- to be counted.
CREATE TABLE stock (
    item      text PRIMARY KEY,
    left_over int CHECK (left_over >= 0),   -- null: being counted just now
    rushed    boolean NOT NULL DEFAULT false -- too many buyers just now
);
CREATE TABLE orders (
    id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer text NOT NULL,
    item     text NOT NULL,
    qty      int NOT NULL CHECK (qty BETWEEN 1 AND 1000)
);
CREATE TABLE payments (
    reference text NOT NULL,
    customer  text NOT NULL,
    amount    int NOT NULL CHECK (amount < 1000000),
    charge    text NOT NULL
);
CREATE TABLE notes (
    author  text NOT NULL,
    content bytea NOT NULL
);

INSERT INTO stock VALUES ('tea', 100000), ('mug', 1), ('tin', NULL);

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'web_shop') THEN
        CREATE ROLE web_shop LOGIN;
    END IF;
END
$$;
SELECT idem_grant('web_shop', 'client');
GRANT SELECT, UPDATE ON stock TO web_shop;
GRANT INSERT, SELECT ON orders, payments, notes TO web_shop;
