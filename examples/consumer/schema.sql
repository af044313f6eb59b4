-- What the messages cause.  Run as the owner of the database, after
-- CREATE EXTENSION idempotency.

-- No unique constraint on the message, on purpose: that each is shipped once is
-- the extension's doing, and a second parcel would be here to be counted.
CREATE TABLE parcels (
    message text NOT NULL,
    sku     text NOT NULL,
    qty     int NOT NULL
);
CREATE TABLE shipped (
    sku text PRIMARY KEY,
    qty bigint NOT NULL
);

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'shipping_app') THEN
        CREATE ROLE shipping_app LOGIN;
    END IF;
END
$$;
SELECT idem_grant('shipping_app', 'client');
GRANT SELECT, INSERT ON parcels TO shipping_app;
GRANT SELECT, INSERT, UPDATE ON shipped TO shipping_app;
