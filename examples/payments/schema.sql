-- The shop's side of the payments example: its book, and two roles that can do
-- no more than their work needs.  Run by run.py as the owner of a new database.

CREATE EXTENSION idempotency;

-- One row per payment, committed before the provider is asked to charge and
-- settled in the transaction that finishes the idempotency record.
CREATE TABLE payment (
    order_no       text PRIMARY KEY,            -- merchant order number, from the identity alone
    user_id        text NOT NULL,
    amount         bigint NOT NULL CHECK (amount > 0),
    currency       text NOT NULL,
    status         text NOT NULL DEFAULT 'pending'
                   CHECK (status IN ('pending', 'succeeded', 'refused')),
    charge_id      text,
    settled_by     text,                        -- 'app' or 'reconciler'
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    -- What callbacks told: the newest event wins, in whatever order they come.
    provider_state text,
    event_seq      int NOT NULL DEFAULT 0,
    CHECK ((status = 'succeeded') = (charge_id IS NOT NULL))
);

-- Every callback that was applied.  No unique index on event_id, on purpose:
-- that each event is here once is idem_once's doing, and run.py counts.
CREATE TABLE payment_event (
    event_id   text NOT NULL,
    order_no   text NOT NULL,
    seq        int NOT NULL,
    kind       text NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Roles belong to the whole cluster and may be there from an earlier run.
DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['pay_app', 'pay_ops'] LOOP
        IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) THEN
            EXECUTE format('CREATE ROLE %I LOGIN', name);
        END IF;
    END LOOP;
END
$$;

-- The application claims and finishes.  It cannot read the records' table,
-- take over another's claim, or forget one.
SELECT idem_grant('pay_app', 'client');
GRANT SELECT, INSERT, UPDATE ON payment TO pay_app;
GRANT INSERT ON payment_event TO pay_app;

-- The reconciler and the report also see what is unresolved, and take it over.
SELECT idem_grant('pay_ops', 'operator');
GRANT SELECT, UPDATE ON payment TO pay_ops;

-- A process that hangs inside a transaction holds its record's lock, and so
-- holds off the reconciler: the server ends such a session.
ALTER ROLE pay_app SET idle_in_transaction_session_timeout = '3s';
ALTER ROLE pay_ops SET idle_in_transaction_session_timeout = '3s';
