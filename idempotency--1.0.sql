/* idempotency--1.0.sql */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idempotency" to load this file. \quit

-- ---------------------------------------------------------------------------
-- The record.  The library reads and writes this table directly, so its shape
-- is part of the code: see the checks in src/shape.c.
--
-- sweep_at is generated rather than computed by a query because an index over
-- an expression of state would take every finish off the HOT path: this
-- column keeps its value when a transactional claim finishes.
-- ---------------------------------------------------------------------------
CREATE TABLE idem_record (
	scope text COLLATE "C" NOT NULL,
	key text COLLATE "C" NOT NULL,
	principal text COLLATE "C" NOT NULL,
	state text COLLATE "C" NOT NULL,
	attempt integer NOT NULL,
	token uuid NOT NULL,
	created_at timestamptz NOT NULL,
	claimed_at timestamptz NOT NULL,
	expires_at timestamptz NOT NULL,
	ttl interval NOT NULL,
	on_abandon text COLLATE "C" NOT NULL,
	recovered boolean NOT NULL,
	progressed boolean NOT NULL,
	lease interval,
	lease_expires_at timestamptz,
	finished_at timestamptz,
	fingerprint bytea,
	checkpoint text,
	checkpoint_data jsonb,
	response_code integer,
	response_body text,
	response_headers jsonb,
	response_bytes bytea,
	sweep_at timestamptz GENERATED ALWAYS AS (
		CASE
			WHEN state = 'unknown' THEN NULL
			WHEN state <> 'processing' OR lease_expires_at IS NULL THEN expires_at
			WHEN on_abandon = 'retry' THEN greatest(expires_at, lease_expires_at)
		END) STORED,
	CONSTRAINT idem_record_pkey PRIMARY KEY (scope, key, principal),
	CONSTRAINT idem_record_identity_check CHECK (
		octet_length(scope) BETWEEN 1 AND 255
		AND octet_length(key) BETWEEN 1 AND 255
		AND octet_length(principal) <= 255),
	CONSTRAINT idem_record_state_check CHECK (
		state IN ('processing', 'succeeded', 'failed', 'released', 'unknown')
		AND on_abandon IN ('unknown', 'retry')
		AND attempt >= 1
		AND (state = 'processing') = (finished_at IS NULL)),
	CONSTRAINT idem_record_lease_check CHECK (
		CASE state
			WHEN 'processing' THEN (lease IS NULL) = (lease_expires_at IS NULL)
			WHEN 'unknown' THEN lease_expires_at IS NOT NULL
			ELSE lease_expires_at IS NULL
		END),
	CONSTRAINT idem_record_response_check CHECK (
		CASE
			WHEN state IN ('succeeded', 'failed')
			THEN response_body IS NULL OR response_bytes IS NULL
			ELSE response_code IS NULL AND response_body IS NULL
				AND response_headers IS NULL AND response_bytes IS NULL
		END),
	CONSTRAINT idem_record_fingerprint_check CHECK (octet_length(fingerprint) = 32)
) WITH (
	fillfactor = 80,
	autovacuum_vacuum_scale_factor = 0.02,
	autovacuum_vacuum_insert_scale_factor = 0.05,
	autovacuum_analyze_scale_factor = 0.05
);

-- what the sweep may delete, and when: O(expired)
CREATE INDEX idem_record_sweep_idx ON idem_record (sweep_at)
	WHERE sweep_at IS NOT NULL;

-- leased and unresolved records only: transactional claims never enter it
CREATE INDEX idem_record_lease_idx ON idem_record (lease_expires_at)
	WHERE lease_expires_at IS NOT NULL;

-- user data: a lost key is a repeated payment
SELECT pg_catalog.pg_extension_config_dump('idem_record', '');

COMMENT ON TABLE idem_record IS 'one row per idempotency key: who may act, and the answer every retry gets';
COMMENT ON COLUMN idem_record.scope IS 'the operation, 1 to 255 bytes';
COMMENT ON COLUMN idem_record.key IS 'the idempotency key the client chose and repeats on every retry, 1 to 255 bytes';
COMMENT ON COLUMN idem_record.principal IS 'who asks, 0 to 255 bytes';
COMMENT ON COLUMN idem_record.state IS 'processing, succeeded, failed, released or unknown, as stored: a lapsed lease still reads processing';
COMMENT ON COLUMN idem_record.attempt IS 'counts the claims and takeovers of this life of the record, from 1';
COMMENT ON COLUMN idem_record.token IS 'fencing token of the latest attempt';
COMMENT ON COLUMN idem_record.created_at IS 'when this life of the record began';
COMMENT ON COLUMN idem_record.claimed_at IS 'when the latest attempt began';
COMMENT ON COLUMN idem_record.expires_at IS 'from when on a settled record is absent';
COMMENT ON COLUMN idem_record.ttl IS 'how long the record replays';
COMMENT ON COLUMN idem_record.on_abandon IS 'what a lapsed lease means: unknown (reconcile) or retry (the next claim runs)';
COMMENT ON COLUMN idem_record.recovered IS 'the latest attempt follows an abandoned one';
COMMENT ON COLUMN idem_record.progressed IS 'extended or checkpointed under the latest claim, which its claim_token can no longer repeat';
COMMENT ON COLUMN idem_record.lease IS 'length of the lease last given; null for a transactional claim';
COMMENT ON COLUMN idem_record.lease_expires_at IS 'end of the lease; null for transactional, finished and released records, lapsed for unknown ones';
COMMENT ON COLUMN idem_record.finished_at IS 'when the latest attempt was finished; null while processing';
COMMENT ON COLUMN idem_record.fingerprint IS 'SHA-256 of the request, 32 bytes; null means no check';
COMMENT ON COLUMN idem_record.checkpoint IS 'recovery point the owner recorded last';
COMMENT ON COLUMN idem_record.checkpoint_data IS 'what goes with the recovery point, such as the provider''s reference';
COMMENT ON COLUMN idem_record.response_code IS 'stored response: code';
COMMENT ON COLUMN idem_record.response_body IS 'stored response: body as text';
COMMENT ON COLUMN idem_record.response_headers IS 'stored response: headers';
COMMENT ON COLUMN idem_record.response_bytes IS 'stored response: body as bytes';
COMMENT ON COLUMN idem_record.sweep_at IS 'from when on the sweep may delete the record; null for unknown ones and for leases whose lapse is unknown';
COMMENT ON CONSTRAINT idem_record_pkey ON idem_record IS 'the identity of a request';
COMMENT ON CONSTRAINT idem_record_identity_check ON idem_record IS 'lengths of the identity, in bytes';
COMMENT ON CONSTRAINT idem_record_state_check ON idem_record IS 'states, and a finish time exactly where something was finished';
COMMENT ON CONSTRAINT idem_record_lease_check ON idem_record IS 'which states carry a lease';
COMMENT ON CONSTRAINT idem_record_response_check ON idem_record IS 'only settled records carry a response, and one body at most';
COMMENT ON CONSTRAINT idem_record_fingerprint_check ON idem_record IS 'length of a fingerprint';
COMMENT ON INDEX idem_record_sweep_idx IS 'expired records, oldest first';
COMMENT ON INDEX idem_record_lease_idx IS 'leased and unresolved records';

-- ---------------------------------------------------------------------------
-- The policies of scopes.  Every session remembers the rows: the triggers tell
-- it when they change, whoever changes them and however; see src/policy.c.
-- The role is a name, so that a restore without it keeps the scope closed
-- instead of failing.
-- ---------------------------------------------------------------------------
CREATE TABLE idem_policy (
	scope text COLLATE "C" NOT NULL,
	ttl interval,
	lease interval,
	wait interval,
	on_abandon text COLLATE "C",
	role name,
	CONSTRAINT idem_policy_pkey PRIMARY KEY (scope),
	CONSTRAINT idem_policy_scope_check CHECK (
		octet_length(scope) BETWEEN 1 AND 255 AND scope !~ '[\x01-\x1F\x7F]'),
	CONSTRAINT idem_policy_ttl_check CHECK (
		ttl > interval '0' AND ttl <= interval '365250 days'),
	CONSTRAINT idem_policy_lease_check CHECK (
		lease >= interval '0' AND lease <= interval '365250 days'),
	CONSTRAINT idem_policy_wait_check CHECK (
		wait >= interval '0' AND wait <= interval '365250 days'),
	CONSTRAINT idem_policy_on_abandon_check CHECK (on_abandon IN ('unknown', 'retry')),
	CONSTRAINT idem_policy_role_check CHECK (role NOT IN ('', 'none', 'public'))
);

CREATE FUNCTION idem_policy_changed()
RETURNS trigger
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_policy_changed()
IS 'tells every session to read idem_policy again';

CREATE TRIGGER idem_policy_changed
	BEFORE INSERT OR UPDATE OR DELETE ON idem_policy
	FOR EACH ROW EXECUTE FUNCTION idem_policy_changed();
CREATE TRIGGER idem_policy_truncated
	BEFORE TRUNCATE ON idem_policy
	FOR EACH STATEMENT EXECUTE FUNCTION idem_policy_changed();
-- also where logical replication applies a change
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_changed;
ALTER TABLE idem_policy ENABLE ALWAYS TRIGGER idem_policy_truncated;

SELECT pg_catalog.pg_extension_config_dump('idem_policy', '');

COMMENT ON TABLE idem_policy IS 'what holds for a scope where a call does not say: defaults, and who may use it';
COMMENT ON COLUMN idem_policy.scope IS 'the scope this row is for, 1 to 255 bytes';
COMMENT ON COLUMN idem_policy.ttl IS 'how long a record replays and a mark is remembered; null: idempotency.ttl, idempotency.once_ttl';
COMMENT ON COLUMN idem_policy.lease IS 'length of the lease of a claim or takeover, 0 for none; null: idempotency.lease';
COMMENT ON COLUMN idem_policy.wait IS 'how long a claim or takeover waits for one in flight; null: idempotency.wait';
COMMENT ON COLUMN idem_policy.on_abandon IS 'what a lapsed lease means: unknown or retry; null: idempotency.on_abandon';
COMMENT ON COLUMN idem_policy.role IS 'only members of this role may use the scope; null: whoever may call the functions';
COMMENT ON CONSTRAINT idem_policy_pkey ON idem_policy IS 'one policy per scope';
COMMENT ON CONSTRAINT idem_policy_scope_check ON idem_policy IS 'what a call accepts as scope';
COMMENT ON CONSTRAINT idem_policy_ttl_check ON idem_policy IS 'what a call accepts as ttl';
COMMENT ON CONSTRAINT idem_policy_lease_check ON idem_policy IS 'what a call accepts as lease';
COMMENT ON CONSTRAINT idem_policy_wait_check ON idem_policy IS 'what a call accepts as wait';
COMMENT ON CONSTRAINT idem_policy_on_abandon_check ON idem_policy IS 'what a call accepts as on_abandon';
COMMENT ON CONSTRAINT idem_policy_role_check ON idem_policy IS 'names that no role can have';
COMMENT ON TRIGGER idem_policy_changed ON idem_policy IS 'no session goes by a row that has changed';
COMMENT ON TRIGGER idem_policy_truncated ON idem_policy IS 'no session goes by a row that is gone';

-- ---------------------------------------------------------------------------
-- The rows that calls answer with.  Named types, because the executor finds
-- the shape of a named row ready made and puts that of OUT columns together
-- anew for each execution, which cost a seventh of a replay.
-- ---------------------------------------------------------------------------
CREATE TYPE idem_claim_row AS (
	outcome text, state text, token uuid, attempt integer,
	recovered boolean, checkpoint text, checkpoint_data jsonb,
	response_code integer, response_body text,
	response_headers jsonb, response_bytes bytea,
	lease_expires_at timestamptz, expires_at timestamptz);
COMMENT ON TYPE idem_claim_row IS 'what idem_claim, idem_takeover and idem_execute answer';
COMMENT ON COLUMN idem_claim_row.outcome IS 'what to do: claimed, executed, replayed, in_progress, mismatch, unknown, released or absent';
COMMENT ON COLUMN idem_claim_row.state IS 'stored state of the record';
COMMENT ON COLUMN idem_claim_row.token IS 'proof of ownership, for whoever claimed and nobody else';
COMMENT ON COLUMN idem_claim_row.attempt IS 'number of the attempt; above 1 an earlier one was released or abandoned';
COMMENT ON COLUMN idem_claim_row.recovered IS 'the earlier attempt was abandoned: whether it took effect is not known';
COMMENT ON COLUMN idem_claim_row.checkpoint IS 'recovery point recorded last';
COMMENT ON COLUMN idem_claim_row.checkpoint_data IS 'what goes with the recovery point';
COMMENT ON COLUMN idem_claim_row.response_code IS 'stored response: code';
COMMENT ON COLUMN idem_claim_row.response_body IS 'stored response: body as text';
COMMENT ON COLUMN idem_claim_row.response_headers IS 'stored response: headers';
COMMENT ON COLUMN idem_claim_row.response_bytes IS 'stored response: body as bytes';
COMMENT ON COLUMN idem_claim_row.lease_expires_at IS 'end of the lease; null where there is none';
COMMENT ON COLUMN idem_claim_row.expires_at IS 'until when the record replays';

CREATE TYPE idem_lookup_row AS (
	outcome text, state text, attempt integer,
	checkpoint text, checkpoint_data jsonb,
	response_code integer, response_body text,
	response_headers jsonb, response_bytes bytea,
	lease_expires_at timestamptz, expires_at timestamptz);
COMMENT ON TYPE idem_lookup_row IS 'what idem_lookup and idem_resolve answer';
COMMENT ON COLUMN idem_lookup_row.outcome IS 'what to do: claimed, executed, replayed, in_progress, mismatch, unknown, released or absent';
COMMENT ON COLUMN idem_lookup_row.state IS 'stored state of the record';
COMMENT ON COLUMN idem_lookup_row.attempt IS 'number of the attempt; above 1 an earlier one was released or abandoned';
COMMENT ON COLUMN idem_lookup_row.checkpoint IS 'recovery point recorded last';
COMMENT ON COLUMN idem_lookup_row.checkpoint_data IS 'what goes with the recovery point';
COMMENT ON COLUMN idem_lookup_row.response_code IS 'stored response: code';
COMMENT ON COLUMN idem_lookup_row.response_body IS 'stored response: body as text';
COMMENT ON COLUMN idem_lookup_row.response_headers IS 'stored response: headers';
COMMENT ON COLUMN idem_lookup_row.response_bytes IS 'stored response: body as bytes';
COMMENT ON COLUMN idem_lookup_row.lease_expires_at IS 'end of the lease; null where there is none';
COMMENT ON COLUMN idem_lookup_row.expires_at IS 'until when the record replays';

-- ---------------------------------------------------------------------------
-- The client's calls
-- ---------------------------------------------------------------------------
CREATE FUNCTION idem_claim(
	scope text, key text, principal text DEFAULT '',
	request jsonb DEFAULT NULL, fingerprint bytea DEFAULT NULL,
	ttl interval DEFAULT NULL, lease interval DEFAULT NULL,
	wait interval DEFAULT NULL, on_abandon text DEFAULT NULL,
	claim_token uuid DEFAULT NULL)
RETURNS idem_claim_row
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_claim(text, text, text, jsonb, bytea, interval, interval, interval, text, uuid)
IS 'claim an idempotency key, or learn what became of it; call it in FROM';

CREATE FUNCTION idem_finish(
	scope text, key text, principal text DEFAULT '', token uuid DEFAULT NULL,
	state text DEFAULT 'succeeded', response_code integer DEFAULT NULL,
	response_body text DEFAULT NULL, response_headers jsonb DEFAULT NULL,
	response_bytes bytea DEFAULT NULL, ttl interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_finish(text, text, text, uuid, text, integer, text, jsonb, bytea, interval)
IS 'record how the claim ended: true now, false if this token already had';

CREATE FUNCTION idem_lookup(
	scope text, key text, principal text DEFAULT '')
RETURNS idem_lookup_row
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_lookup(text, text, text)
IS 'what is known of a key; never writes';

CREATE FUNCTION idem_extend(
	scope text, key text, principal text DEFAULT '', token uuid DEFAULT NULL,
	lease interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_extend(text, text, text, uuid, interval)
IS 'heartbeat: renew the lease of a claim the token owns';

CREATE FUNCTION idem_checkpoint(
	scope text, key text, principal text DEFAULT '', token uuid DEFAULT NULL,
	checkpoint text DEFAULT NULL, checkpoint_data jsonb DEFAULT NULL,
	on_abandon text DEFAULT NULL, lease interval DEFAULT NULL)
RETURNS timestamptz
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_checkpoint(text, text, text, uuid, text, jsonb, text, interval)
IS 'record a recovery point and renew the lease';

CREATE FUNCTION idem_assert(
	scope text, key text, principal text DEFAULT '', token uuid DEFAULT NULL)
RETURNS void
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_assert(text, text, text, uuid)
IS 'fence: no takeover can commit before this transaction ends';

CREATE FUNCTION idem_once(
	scope text, key text, principal text DEFAULT '', ttl interval DEFAULT NULL)
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once(text, text, text, interval)
IS 'true the first time a key is seen, false after';

CREATE FUNCTION idem_once_batch(
	scope text, keys text[], principal text DEFAULT '', ttl interval DEFAULT NULL)
RETURNS SETOF text
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_once_batch(text, text[], text, interval)
IS 'those of the keys that are seen for the first time, each once';

CREATE FUNCTION idem_execute(
	scope text, key text, principal text DEFAULT '',
	request jsonb DEFAULT NULL, command text DEFAULT NULL,
	ttl interval DEFAULT NULL, wait interval DEFAULT NULL)
RETURNS idem_claim_row
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_execute(text, text, text, jsonb, text, interval, interval)
IS 'claim, run the command as the caller, store its result: one round trip';

CREATE FUNCTION idem_fingerprint(request jsonb)
RETURNS bytea
AS 'MODULE_PATHNAME'
LANGUAGE C IMMUTABLE STRICT PARALLEL SAFE;
COMMENT ON FUNCTION idem_fingerprint(jsonb)
IS 'SHA-256 over the canonical form of a request';

-- ---------------------------------------------------------------------------
-- The operator's calls
-- ---------------------------------------------------------------------------
CREATE FUNCTION idem_sweep(
	max_rows integer DEFAULT 1000,
	OUT deleted bigint, OUT unresolved bigint, OUT more boolean)
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_sweep(integer)
IS 'delete up to max_rows expired records, oldest first, skipping locked ones';

CREATE PROCEDURE idem_sweep_all(
	batch integer DEFAULT 1000, pause interval DEFAULT '0')
AS 'MODULE_PATHNAME'
LANGUAGE C;
COMMENT ON PROCEDURE idem_sweep_all(integer, interval)
IS 'delete all expired records, committing after every batch';

CREATE FUNCTION idem_takeover(
	scope text, key text, principal text DEFAULT '',
	lease interval DEFAULT NULL, wait interval DEFAULT NULL,
	force boolean DEFAULT false)
RETURNS idem_claim_row
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_takeover(text, text, text, interval, interval, boolean)
IS 'become the owner of an unknown, released or abandoned record, fencing the old one';

CREATE FUNCTION idem_resolve(
	scope text, key text, principal text DEFAULT '', state text DEFAULT NULL,
	response_code integer DEFAULT NULL, response_body text DEFAULT NULL,
	response_headers jsonb DEFAULT NULL, response_bytes bytea DEFAULT NULL,
	ttl interval DEFAULT NULL, force boolean DEFAULT false)
RETURNS idem_lookup_row
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_resolve(text, text, text, text, integer, text, jsonb, bytea, interval, boolean)
IS 'takeover and finish in one statement';

CREATE FUNCTION idem_forget(scope text, key text, principal text DEFAULT '')
RETURNS boolean
AS 'MODULE_PATHNAME'
LANGUAGE C VOLATILE PARALLEL UNSAFE;
COMMENT ON FUNCTION idem_forget(text, text, text)
IS 'delete a record whatever its state';

-- What the views below say of leases, said once.  They belong to the same
-- owner, so nobody needs a right on this one; the planner puts it into them as
-- if it were written there.  When a lease counts as lapsed is left to them,
-- for idem_stats has one clock for all its figures.
--
-- Whoever takes a record over and cannot settle it sets its lease anew, so the
-- age of one that was taken over is counted from the first claim of its key:
-- a reconciler that finds nothing out must not keep the age near zero.
CREATE VIEW idem_lease AS
	SELECT r.scope, r.key, r.principal, r.state, r.attempt, r.on_abandon,
		r.claimed_at, r.lease_expires_at, r.checkpoint, r.checkpoint_data,
		r.state = 'unknown'
			OR (r.state = 'processing' AND r.on_abandon = 'unknown') AS unresolved_once_lapsed,
		CASE WHEN r.recovered THEN r.created_at ELSE r.lease_expires_at END AS unresolved_since
	FROM idem_record r
	WHERE r.lease_expires_at IS NOT NULL;
COMMENT ON VIEW idem_lease IS 'what the views for monitoring are made of: every record that is leased, abandoned or unknown';
COMMENT ON COLUMN idem_lease.scope IS 'the operation';
COMMENT ON COLUMN idem_lease.key IS 'the idempotency key';
COMMENT ON COLUMN idem_lease.principal IS 'who asked';
COMMENT ON COLUMN idem_lease.state IS 'processing or unknown';
COMMENT ON COLUMN idem_lease.attempt IS 'the latest attempt';
COMMENT ON COLUMN idem_lease.on_abandon IS 'what a lapsed lease means for this record';
COMMENT ON COLUMN idem_lease.claimed_at IS 'when that attempt began';
COMMENT ON COLUMN idem_lease.lease_expires_at IS 'end of the lease';
COMMENT ON COLUMN idem_lease.checkpoint IS 'recovery point recorded last';
COMMENT ON COLUMN idem_lease.checkpoint_data IS 'what goes with the recovery point';
COMMENT ON COLUMN idem_lease.unresolved_once_lapsed IS 'from the end of the lease on it needs reconciling; otherwise the next claim gets it';
COMMENT ON COLUMN idem_lease.unresolved_since IS 'since when, then: the end of the lease, or if it was taken over the first claim of its key';

-- The scalar subquery makes the clock an index condition instead of a filter.
-- The barrier keeps a monitoring role's own functions from being applied to
-- records that the view does not show.
CREATE VIEW idem_unresolved WITH (security_barrier) AS
	SELECT r.scope, r.key, r.principal, r.state, r.attempt, r.on_abandon,
		r.claimed_at, r.lease_expires_at, r.checkpoint, r.checkpoint_data
	FROM idem_lease r
	WHERE r.lease_expires_at <= (SELECT pg_catalog.clock_timestamp())
		AND r.unresolved_once_lapsed
	ORDER BY r.lease_expires_at;
COMMENT ON VIEW idem_unresolved IS 'every record that needs reconciling, oldest first';
COMMENT ON COLUMN idem_unresolved.scope IS 'the operation';
COMMENT ON COLUMN idem_unresolved.key IS 'the idempotency key';
COMMENT ON COLUMN idem_unresolved.principal IS 'who asked';
COMMENT ON COLUMN idem_unresolved.state IS 'unknown, or processing under a lapsed lease';
COMMENT ON COLUMN idem_unresolved.attempt IS 'the attempt whose outcome nobody knows';
COMMENT ON COLUMN idem_unresolved.on_abandon IS 'what a lapsed lease means for this record';
COMMENT ON COLUMN idem_unresolved.claimed_at IS 'when that attempt began';
COMMENT ON COLUMN idem_unresolved.lease_expires_at IS 'since when the record is unresolved';
COMMENT ON COLUMN idem_unresolved.checkpoint IS 'recovery point recorded last';
COMMENT ON COLUMN idem_unresolved.checkpoint_data IS 'what goes with the recovery point';

CREATE VIEW idem_health AS
	SELECT u.n AS unresolved,
		pg_catalog.clock_timestamp() - u.since AS oldest_unresolved,
		(SELECT pg_catalog.count(*) FROM idem_lease r
			WHERE r.lease_expires_at > (SELECT pg_catalog.clock_timestamp())) AS leased,
		(SELECT pg_catalog.clock_timestamp() - r.sweep_at FROM idem_record r
			WHERE r.sweep_at <= (SELECT pg_catalog.clock_timestamp())
			ORDER BY r.sweep_at LIMIT 1) AS oldest_expired
	FROM (SELECT pg_catalog.count(*) AS n, pg_catalog.min(r.unresolved_since) AS since
		FROM idem_lease r
		WHERE r.lease_expires_at <= (SELECT pg_catalog.clock_timestamp())
			AND r.unresolved_once_lapsed) u;
COMMENT ON VIEW idem_health IS 'one row of figures to watch; cheap at any size';
COMMENT ON COLUMN idem_health.unresolved IS 'how many records need reconciling';
COMMENT ON COLUMN idem_health.oldest_unresolved IS 'for how long the oldest of them has, one that was taken over since its first claim; null if none does';
COMMENT ON COLUMN idem_health.leased IS 'live leases';
COMMENT ON COLUMN idem_health.oldest_expired IS 'for how long the oldest deletable record has waited for the sweep; null if none does';

-- ---------------------------------------------------------------------------
-- Figures per scope, at a cost that does not grow with the table: about 1,000
-- pages, and what is in flight.
--
-- What is leased, unknown or abandoned is in the lease index, so it is counted
-- one by one, up to 10,000 records on either side of the clock; so are the
-- 1,000 that have been expired for longest, in the sweep index.  What is
-- settled is in no index that would tell; it is estimated from 1,000 pages,
-- which are all pages of a small table.  The sample is repeatable, so that a
-- figure moves only because the table did.  Scopes are found by skipping from
-- one to the next in the primary key, which finds those that no sample has.
-- Each LIMIT comes with the order of an index, so that the planner takes it
-- even where it has no statistics.
-- ---------------------------------------------------------------------------
CREATE VIEW idem_stats WITH (security_barrier) AS
	WITH RECURSIVE clock (now, sampled) AS MATERIALIZED (
		SELECT pg_catalog.clock_timestamp(), least(1::pg_catalog.float8, 1000::pg_catalog.float8
			* pg_catalog.current_setting('block_size')::pg_catalog.float8
			/ greatest(pg_catalog.pg_relation_size('idem_record'::pg_catalog.regclass), 1)::pg_catalog.float8)
	), walk (scope, n) AS (
		(SELECT r.scope, 1 FROM idem_record r ORDER BY r.scope LIMIT 1)
		UNION ALL
		SELECT (SELECT r.scope FROM idem_record r WHERE r.scope > w.scope ORDER BY r.scope LIMIT 1),
			w.n + 1
		FROM walk w WHERE w.scope IS NOT NULL AND w.n < 1000
	), sample AS (
		SELECT r.scope,
			pg_catalog.count(*) FILTER (WHERE r.state = 'succeeded') AS succeeded,
			pg_catalog.count(*) FILTER (WHERE r.state = 'failed') AS failed,
			pg_catalog.count(*) FILTER (WHERE r.state = 'released') AS released,
			pg_catalog.count(*) FILTER (WHERE r.recovered) AS recovered,
			pg_catalog.count(*) FILTER (WHERE r.sweep_at <= c.now) AS expired
		FROM clock c, LATERAL (
			SELECT s.scope, s.state, s.recovered, s.sweep_at
			FROM idem_record s TABLESAMPLE SYSTEM (100::pg_catalog.float8 * c.sampled) REPEATABLE (0)) r
		GROUP BY r.scope
	), lapsed AS (
		SELECT r.scope,
			pg_catalog.count(*) FILTER (WHERE r.state = 'processing') AS abandoned,
			pg_catalog.count(*) FILTER (WHERE NOT r.unresolved_once_lapsed) AS retryable,
			pg_catalog.count(*) FILTER (WHERE r.unresolved_once_lapsed) AS unresolved,
			pg_catalog.min(r.unresolved_since) FILTER (WHERE r.unresolved_once_lapsed) AS since
		FROM (SELECT s.scope, s.state, s.unresolved_once_lapsed, s.unresolved_since
			FROM idem_lease s WHERE s.lease_expires_at <= (SELECT c.now FROM clock c)
			ORDER BY s.lease_expires_at LIMIT 10000) r
		GROUP BY r.scope
	), live AS (
		SELECT r.scope, pg_catalog.count(*) AS leased, pg_catalog.min(r.claimed_at) AS since
		FROM (SELECT s.scope, s.claimed_at
			FROM idem_lease s WHERE s.lease_expires_at > (SELECT c.now FROM clock c)
			ORDER BY s.lease_expires_at DESC LIMIT 10000) r
		GROUP BY r.scope
	), overdue AS (
		SELECT r.scope, pg_catalog.min(r.sweep_at) AS since
		FROM (SELECT s.scope, s.sweep_at
			FROM idem_record s WHERE s.sweep_at <= (SELECT c.now FROM clock c)
			ORDER BY s.sweep_at LIMIT 1000) r
		GROUP BY r.scope
	), scopes (scope) AS (
		SELECT w.scope FROM walk w WHERE w.scope IS NOT NULL
		UNION SELECT r.scope FROM sample r
		UNION SELECT r.scope FROM lapsed r
		UNION SELECT r.scope FROM live r
		UNION SELECT r.scope FROM overdue r
	)
	SELECT scope,
		coalesce(v.leased, 0) AS leased,
		c.now - v.since AS oldest_lease,
		coalesce(l.abandoned, 0) AS abandoned,
		coalesce(l.retryable, 0) AS retryable,
		coalesce(l.unresolved, 0) AS unresolved,
		c.now - l.since AS oldest_unresolved,
		c.now - o.since AS oldest_expired,
		(coalesce(x.succeeded, 0)::pg_catalog.float8 / c.sampled)::bigint AS succeeded_estimate,
		(coalesce(x.failed, 0)::pg_catalog.float8 / c.sampled)::bigint AS failed_estimate,
		(coalesce(x.released, 0)::pg_catalog.float8 / c.sampled)::bigint AS released_estimate,
		(coalesce(x.recovered, 0)::pg_catalog.float8 / c.sampled)::bigint AS recovered_estimate,
		(coalesce(x.expired, 0)::pg_catalog.float8 / c.sampled)::bigint AS expired_estimate,
		c.sampled
	FROM clock c, scopes s
		LEFT JOIN live v USING (scope)
		LEFT JOIN lapsed l USING (scope)
		LEFT JOIN overdue o USING (scope)
		LEFT JOIN sample x USING (scope)
	ORDER BY scope;
COMMENT ON VIEW idem_stats IS 'figures per scope; cheap at any size';
COMMENT ON COLUMN idem_stats.scope IS 'the operation; the first 1000, and those with records in flight';
COMMENT ON COLUMN idem_stats.leased IS 'live leases, counted up to 10000 over all scopes';
COMMENT ON COLUMN idem_stats.oldest_lease IS 'since the claim that has held one of them for longest';
COMMENT ON COLUMN idem_stats.abandoned IS 'leases that lapsed without a finish, the 10000 oldest over all scopes';
COMMENT ON COLUMN idem_stats.retryable IS 'those of them that the next claim gets, because on_abandon is retry';
COMMENT ON COLUMN idem_stats.unresolved IS 'records that need reconciling, of the 10000 oldest lapsed leases';
COMMENT ON COLUMN idem_stats.oldest_unresolved IS 'for how long the oldest of them has, one that was taken over since its first claim; null if none does';
COMMENT ON COLUMN idem_stats.oldest_expired IS 'for how long the oldest deletable record has waited for the sweep, of the 1000 oldest';
COMMENT ON COLUMN idem_stats.succeeded_estimate IS 'records that succeeded, from the sample';
COMMENT ON COLUMN idem_stats.failed_estimate IS 'records that failed, from the sample';
COMMENT ON COLUMN idem_stats.released_estimate IS 'records that were released, from the sample';
COMMENT ON COLUMN idem_stats.recovered_estimate IS 'records whose latest attempt follows an abandoned one, from the sample';
COMMENT ON COLUMN idem_stats.expired_estimate IS 'records that the sweep may delete, from the sample';
COMMENT ON COLUMN idem_stats.sampled IS 'share of the table that the estimates are made from; 1: they are exact';

CREATE VIEW idem_report AS
	SELECT s.scope,
		CASE WHEN s.sampled < 1::pg_catalog.float8 THEN '~' ELSE '' END
			|| pg_catalog.to_char(r.settled + s.leased + s.retryable + s.unresolved, 'FM999,999,999,999,990') AS records,
		pg_catalog.round(100::numeric * s.failed_estimate::numeric / nullif(r.settled, 0::bigint)::numeric, 1) AS "failed %",
		pg_catalog.round(100::numeric * s.recovered_estimate::numeric / nullif(r.settled, 0::bigint)::numeric, 1) AS "recovered %",
		s.leased,
		pg_catalog.date_trunc('second', s.oldest_lease) AS "for up to",
		s.unresolved,
		CASE WHEN s.sampled < 1::pg_catalog.float8 AND s.expired_estimate > 0 THEN '~' ELSE '' END
			|| pg_catalog.to_char(s.expired_estimate, 'FM999,999,999,999,990') AS expired,
		pg_catalog.concat_ws('; ',
			CASE WHEN s.unresolved > 0 THEN 'reconcile, waiting for '
				|| pg_catalog.date_trunc('second', s.oldest_unresolved)::text END,
			CASE WHEN s.oldest_expired > interval '15 min' THEN 'sweep is behind by '
				|| pg_catalog.date_trunc('second', s.oldest_expired)::text END,
			CASE WHEN s.retryable > 0 THEN s.retryable::text || ' abandoned, to be claimed again' END) AS attention
	FROM idem_stats s, LATERAL (
		SELECT s.succeeded_estimate + s.failed_estimate + s.released_estimate AS settled) r
	ORDER BY s.unresolved DESC, s.scope;
COMMENT ON VIEW idem_report IS 'idem_stats to look at, such as by psql''s \watch; what needs somebody comes first';
COMMENT ON COLUMN idem_report.scope IS 'the operation';
COMMENT ON COLUMN idem_report.records IS 'how many there are; ~ marks an estimate';
COMMENT ON COLUMN idem_report."failed %" IS 'how many of the settled records failed';
COMMENT ON COLUMN idem_report."recovered %" IS 'how many of the settled records follow an abandoned attempt';
COMMENT ON COLUMN idem_report.leased IS 'live leases';
COMMENT ON COLUMN idem_report."for up to" IS 'since the claim that has held one of them for longest';
COMMENT ON COLUMN idem_report.unresolved IS 'records that need reconciling';
COMMENT ON COLUMN idem_report.expired IS 'records that the sweep may delete';
COMMENT ON COLUMN idem_report.attention IS 'what is to be done';

-- ---------------------------------------------------------------------------
-- Privileges.  The three sets are named in one place; granting and revoking
-- run as plain statements with the caller's rights.  Objects are found through
-- the extension's own membership, never by search_path.
-- ---------------------------------------------------------------------------
CREATE FUNCTION idem_privilege_set(privilege text)
RETURNS SETOF text
LANGUAGE plpgsql STABLE PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	client constant text[] := '{idem_claim,idem_finish,idem_lookup,idem_extend,idem_checkpoint,idem_assert,idem_once,idem_once_batch,idem_execute,idem_fingerprint}';
	monitor constant text[] := '{idem_unresolved,idem_health,idem_stats,idem_report}';
	operator constant text[] := '{idem_sweep,idem_sweep_all,idem_takeover,idem_resolve,idem_forget,idem_policy}';
	members constant text[] := CASE privilege
		WHEN 'client' THEN client
		WHEN 'monitor' THEN monitor
		WHEN 'operator' THEN client || monitor || operator
	END;
BEGIN
	IF members IS NULL THEN
		RAISE EXCEPTION 'privilege is not the name of a privilege set'
			USING ERRCODE = '22023', COLUMN = 'privilege',
				HINT = 'Use client, monitor or operator.';
	END IF;
	RETURN QUERY
		SELECT CASE p.prokind WHEN 'p' THEN 'EXECUTE ON PROCEDURE ' ELSE 'EXECUTE ON FUNCTION ' END
			|| p.oid::regprocedure::text
		FROM pg_extension e
			JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
				AND d.deptype = 'e' AND d.classid = 'pg_proc'::regclass
			JOIN pg_proc p ON p.oid = d.objid
		WHERE e.extname = 'idempotency' AND p.proname = ANY (members)
		UNION ALL
		SELECT CASE c.relkind WHEN 'r' THEN 'SELECT, INSERT, UPDATE, DELETE ON TABLE ' ELSE 'SELECT ON TABLE ' END
			|| c.oid::regclass::text
		FROM pg_extension e
			JOIN pg_depend d ON d.refclassid = 'pg_extension'::regclass AND d.refobjid = e.oid
				AND d.deptype = 'e' AND d.classid = 'pg_class'::regclass
			JOIN pg_class c ON c.oid = d.objid
		WHERE e.extname = 'idempotency' AND c.relname = ANY (members);
END
$$;
COMMENT ON FUNCTION idem_privilege_set(text)
IS 'what the privilege set client, monitor or operator consists of, as the middle part of GRANT';

CREATE FUNCTION idem_grant(grantee regrole, privilege text DEFAULT 'client')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	nsp regnamespace;
	member text;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE oid = grantee) THEN
		RAISE EXCEPTION 'grantee must be a role'
			USING ERRCODE = '22023', COLUMN = 'grantee', HINT = 'Name an existing role.';
	END IF;
	SELECT extnamespace INTO nsp FROM pg_extension WHERE extname = 'idempotency';
	FOR member IN EXECUTE format('SELECT * FROM %s.idem_privilege_set($1)', nsp) USING privilege LOOP
		EXECUTE format('GRANT %s TO %s', member, grantee);
	END LOOP;
	IF NOT has_schema_privilege(grantee::oid, nsp::oid, 'USAGE') THEN
		EXECUTE format('GRANT USAGE ON SCHEMA %s TO %s', nsp, grantee);
	END IF;
END
$$;
COMMENT ON FUNCTION idem_grant(regrole, text)
IS 'grant the privilege set client, monitor or operator, and usage of the schema';

CREATE FUNCTION idem_revoke(grantee regrole, privilege text DEFAULT 'client')
RETURNS void
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	nsp regnamespace;
	member text;
BEGIN
	IF NOT EXISTS (SELECT FROM pg_roles WHERE oid = grantee) THEN
		RAISE EXCEPTION 'grantee must be a role'
			USING ERRCODE = '22023', COLUMN = 'grantee', HINT = 'Name an existing role.';
	END IF;
	SELECT extnamespace INTO nsp FROM pg_extension WHERE extname = 'idempotency';
	FOR member IN EXECUTE format('SELECT * FROM %s.idem_privilege_set($1)', nsp) USING privilege LOOP
		EXECUTE format('REVOKE %s FROM %s', member, grantee);
	END LOOP;
END
$$;
COMMENT ON FUNCTION idem_revoke(regrole, text)
IS 'revoke the privilege set client, monitor or operator; usage of the schema stays';

-- On a fresh install PUBLIC can compute fingerprints and nothing else.
REVOKE ALL ON idem_record, idem_policy, idem_lease, idem_unresolved,
	idem_health, idem_stats, idem_report FROM PUBLIC;
REVOKE ALL ON FUNCTION idem_claim, idem_finish, idem_lookup, idem_extend,
	idem_checkpoint, idem_assert, idem_once, idem_once_batch, idem_execute,
	idem_sweep, idem_takeover, idem_resolve, idem_forget,
	idem_policy_changed, idem_privilege_set, idem_grant, idem_revoke FROM PUBLIC;
REVOKE ALL ON PROCEDURE idem_sweep_all FROM PUBLIC;
