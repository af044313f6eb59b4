--
-- A table that the direct path would get wrong is refused, by every call.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- All calls, on keys of which some are there.
CREATE TEMP TABLE calls (n int, statement text);
INSERT INTO calls VALUES
	(1, 'SELECT * FROM idem_claim(''shape'', ''new'', lease => ''1 hour'')'),
	(2, 'SELECT idem_finish(''shape'', ''there'', token => (SELECT token FROM tokens))'),
	(3, 'SELECT * FROM idem_lookup(''shape'', ''there'')'),
	(4, 'SELECT idem_extend(''shape'', ''there'', token => (SELECT token FROM tokens))'),
	(5, 'SELECT idem_checkpoint(''shape'', ''there'', token => (SELECT token FROM tokens), checkpoint => ''c'')'),
	(6, 'SELECT idem_assert(''shape'', ''there'', token => (SELECT token FROM tokens))'),
	(7, 'SELECT idem_once(''shape'', ''message'')'),
	(8, 'SELECT idem_once_batch(''shape'', ''{message}'')'),
	(9, 'SELECT * FROM idem_execute(''shape'', ''new'', command => ''SELECT 1'')'),
	(10, 'SELECT * FROM idem_sweep()'),
	(11, 'SELECT * FROM idem_takeover(''shape'', ''there'')'),
	(12, 'SELECT * FROM idem_resolve(''shape'', ''there'', state => ''failed'')'),
	(13, 'SELECT idem_forget(''shape'', ''nothing'')');
CREATE TEMP TABLE tokens AS SELECT token FROM idem_claim('shape', 'there', lease => '1 hour');
CREATE FUNCTION pg_temp.refusal() RETURNS TABLE (codes text, message text, detail text, hint text) LANGUAGE sql AS $$
	SELECT string_agg(DISTINCT f.code, ' ') || ' x ' || count(*), min(f.message), min(nullif(f.detail, '')), min(nullif(f.hint, ''))
	FROM calls c, LATERAL pg_temp.failing(c.statement) f
$$;
-- The row of errors after a change, and what is left to say once it is undone.
CREATE FUNCTION pg_temp.with_change(change text, undo text) RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE
	r record;
	code text;
BEGIN
	EXECUTE change;
	SELECT * INTO r FROM pg_temp.refusal();
	RETURN NEXT concat_ws(': ', r.codes, r.detail);
	EXECUTE undo;
	SELECT f.code INTO code FROM pg_temp.failing('SELECT * FROM idem_claim(''shape'', ''new'', lease => ''1 hour'')') f;
	IF code <> 'none' THEN
		RETURN NEXT 'refused with ' || code || ' after it was undone';
	END IF;
END $$;

-- as it is: none of the calls is refused
SELECT codes FROM pg_temp.refusal();
DELETE FROM idem_record WHERE scope = 'shape' AND key <> 'there';
UPDATE idem_record SET state = 'processing', finished_at = NULL, lease_expires_at = now() + interval '1 hour' WHERE scope = 'shape';

-- the whole message, once
ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY;
SELECT * FROM idem_lookup('shape', 'there');
ALTER TABLE idem_record DISABLE ROW LEVEL SECURITY;
SELECT outcome FROM idem_lookup('shape', 'there');

-- what the executor would do besides: row security, triggers, rules, foreign keys
SELECT pg_temp.with_change('ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY', 'ALTER TABLE idem_record DISABLE ROW LEVEL SECURITY');
SELECT pg_temp.with_change('ALTER TABLE idem_record FORCE ROW LEVEL SECURITY', 'ALTER TABLE idem_record NO FORCE ROW LEVEL SECURITY');
CREATE FUNCTION regress_trigger() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
SELECT pg_temp.with_change('CREATE TRIGGER t BEFORE INSERT ON idem_record FOR EACH ROW EXECUTE FUNCTION regress_trigger()', 'DROP TRIGGER t ON idem_record');
SELECT pg_temp.with_change('CREATE TRIGGER t AFTER TRUNCATE ON idem_record EXECUTE FUNCTION regress_trigger()', 'DROP TRIGGER t ON idem_record');
SELECT pg_temp.with_change('CREATE CONSTRAINT TRIGGER t AFTER DELETE ON idem_record DEFERRABLE FOR EACH ROW EXECUTE FUNCTION regress_trigger()', 'DROP TRIGGER t ON idem_record');
DROP FUNCTION regress_trigger;
SELECT pg_temp.with_change('CREATE RULE r AS ON DELETE TO idem_record DO INSTEAD NOTHING', 'DROP RULE r ON idem_record');
CREATE TABLE regress_other (a int PRIMARY KEY, s text, k text, p text);
SELECT pg_temp.with_change('ALTER TABLE regress_other ADD CONSTRAINT f FOREIGN KEY (s, k, p) REFERENCES idem_record', 'ALTER TABLE regress_other DROP CONSTRAINT f');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD CONSTRAINT f FOREIGN KEY (response_code) REFERENCES regress_other', 'ALTER TABLE idem_record DROP CONSTRAINT f');
DROP TABLE regress_other;

-- constraints: neither more nor less
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD CONSTRAINT c CHECK (response_code > 0)', 'ALTER TABLE idem_record DROP CONSTRAINT c');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD CONSTRAINT c CHECK (response_code > 0) NOT VALID', 'ALTER TABLE idem_record DROP CONSTRAINT c');
SELECT pg_temp.with_change('ALTER TABLE idem_record RENAME CONSTRAINT idem_record_state_check TO c', 'ALTER TABLE idem_record RENAME CONSTRAINT c TO idem_record_state_check');
SELECT pg_temp.with_change('ALTER TABLE idem_record DROP CONSTRAINT idem_record_fingerprint_check', 'ALTER TABLE idem_record ADD CONSTRAINT idem_record_fingerprint_check CHECK (octet_length(fingerprint) = 32)');

-- under the right name, but calling what may change without the table changing:
-- refused where a row is to be checked
CREATE FUNCTION regress_length(bytea) RETURNS int IMMUTABLE LANGUAGE sql AS 'SELECT octet_length($1)';
BEGIN;
ALTER TABLE idem_record DROP CONSTRAINT idem_record_fingerprint_check;
ALTER TABLE idem_record ADD CONSTRAINT idem_record_fingerprint_check CHECK (regress_length(fingerprint) = 32);
SELECT f.code, f.message, f.hint FROM pg_temp.failing('SELECT * FROM idem_claim(''shape'', ''newer'', lease => ''1 hour'')') f;
SELECT outcome FROM idem_lookup('shape', 'there');
ROLLBACK;
DROP FUNCTION regress_length;

-- another table access method, though it is only a name for heap
CREATE ACCESS METHOD regress_heap TYPE TABLE HANDLER heap_tableam_handler;
SELECT pg_temp.with_change('ALTER TABLE idem_record SET ACCESS METHOD regress_heap', 'ALTER TABLE idem_record SET ACCESS METHOD heap');
DROP ACCESS METHOD regress_heap;

-- the index of the sweep, in another form
SELECT pg_temp.with_change('DROP INDEX idem_record_sweep_idx; CREATE INDEX idem_record_sweep_idx ON idem_record ' || definition,
	'DROP INDEX idem_record_sweep_idx; CREATE INDEX idem_record_sweep_idx ON idem_record (sweep_at) WHERE sweep_at IS NOT NULL')
FROM unnest(ARRAY['(sweep_at DESC) WHERE sweep_at IS NOT NULL', '(sweep_at, attempt) WHERE sweep_at IS NOT NULL',
	'(sweep_at)', '(sweep_at) WHERE attempt > 0', '(sweep_at) WHERE sweep_at IS NULL',
	'(sweep_at) WHERE expires_at IS NOT NULL', '(sweep_at) WHERE (attempt + 1) IS NOT NULL']) definition;

-- columns: none dropped, renamed or changed
BEGIN;
ALTER TABLE idem_record DROP COLUMN progressed;
SELECT codes, detail FROM pg_temp.refusal();
ROLLBACK;
SELECT outcome FROM idem_lookup('shape', 'there');
SELECT pg_temp.with_change('ALTER TABLE idem_record RENAME checkpoint TO milestone', 'ALTER TABLE idem_record RENAME milestone TO checkpoint');
SELECT pg_temp.with_change('ALTER TABLE idem_record ALTER response_body TYPE varchar(100)', 'ALTER TABLE idem_record ALTER response_body TYPE text');
SELECT pg_temp.with_change('ALTER TABLE idem_record ALTER response_code TYPE bigint', 'ALTER TABLE idem_record ALTER response_code TYPE integer');
SELECT pg_temp.with_change('ALTER TABLE idem_record ALTER token DROP NOT NULL', 'ALTER TABLE idem_record ALTER token SET NOT NULL');
BEGIN;
DELETE FROM idem_record;
ALTER TABLE idem_record ALTER lease SET NOT NULL;
SELECT codes, detail FROM pg_temp.refusal();
ROLLBACK;
BEGIN;
ALTER TABLE idem_record ALTER sweep_at DROP EXPRESSION;
SELECT codes, detail FROM pg_temp.refusal();
ROLLBACK;

-- those that the views are on, too
CREATE FUNCTION pg_temp.without_views(change text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	ALTER EXTENSION idempotency DROP VIEW idem_report;
	ALTER EXTENSION idempotency DROP VIEW idem_stats;
	ALTER EXTENSION idempotency DROP VIEW idem_health;
	ALTER EXTENSION idempotency DROP VIEW idem_unresolved;
	ALTER EXTENSION idempotency DROP VIEW idem_lease;
	DROP VIEW idem_report, idem_stats, idem_health, idem_unresolved, idem_lease;
	EXECUTE change;
	RETURN QUERY SELECT concat_ws(': ', codes, detail) FROM pg_temp.refusal();
END $$;
BEGIN;
SELECT pg_temp.without_views('SELECT 1');
ROLLBACK;
BEGIN;
SELECT pg_temp.without_views('ALTER TABLE idem_record ALTER principal TYPE text COLLATE "default"');
ROLLBACK;
BEGIN;
SELECT pg_temp.without_views('ALTER TABLE idem_record ALTER key TYPE varchar(300) COLLATE "C"');
ROLLBACK;
BEGIN;
SELECT pg_temp.without_views('ALTER TABLE idem_record ALTER claimed_at TYPE timestamptz(0)');
ROLLBACK;

-- a column may be added if it is nullable and without a default
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD note text NOT NULL DEFAULT ''x''', 'ALTER TABLE idem_record DROP note');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD note text DEFAULT ''x''', 'ALTER TABLE idem_record ALTER note DROP DEFAULT');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD n bigint GENERATED ALWAYS AS IDENTITY', 'ALTER TABLE idem_record DROP n');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD n int GENERATED ALWAYS AS (length(key)) STORED', 'ALTER TABLE idem_record DROP n');
CREATE DOMAIN regress_domain AS text NOT NULL CHECK (value <> '');
BEGIN;
DELETE FROM idem_record;
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD d regress_domain', 'ALTER TABLE idem_record DROP d');
ROLLBACK;
DROP DOMAIN regress_domain;

-- indexes: the identity's, the sweep's, the leases'; unique ones on nothing else
SELECT pg_temp.with_change('ALTER TABLE idem_record DROP CONSTRAINT idem_record_pkey', 'ALTER TABLE idem_record ADD CONSTRAINT idem_record_pkey PRIMARY KEY (scope, key, principal)');
SELECT pg_temp.with_change('DROP INDEX idem_record_sweep_idx', 'CREATE INDEX idem_record_sweep_idx ON idem_record (sweep_at) WHERE sweep_at IS NOT NULL');
SELECT pg_temp.with_change('DROP INDEX idem_record_lease_idx', 'CREATE INDEX idem_record_lease_idx ON idem_record (lease_expires_at) WHERE lease_expires_at IS NOT NULL');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (token)', 'DROP INDEX i');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (scope, key)', 'DROP INDEX i');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (scope, key, principal, attempt)', 'DROP INDEX i');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (scope, key, principal) WHERE state = ''succeeded''', 'DROP INDEX i');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (scope, key, lower(principal))', 'DROP INDEX i');
SELECT pg_temp.with_change('CREATE UNIQUE INDEX i ON idem_record (scope, key, principal COLLATE "default")', 'DROP INDEX i');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD CONSTRAINT u UNIQUE (scope, key, principal) DEFERRABLE', 'ALTER TABLE idem_record DROP CONSTRAINT u');
SELECT pg_temp.with_change('ALTER TABLE idem_record ADD CONSTRAINT u EXCLUDE (token WITH =)', 'ALTER TABLE idem_record DROP CONSTRAINT u');
SELECT pg_temp.with_change('UPDATE pg_index SET indisvalid = false WHERE indexrelid = ''idem_record_pkey''::regclass', 'UPDATE pg_index SET indisvalid = true WHERE indexrelid = ''idem_record_pkey''::regclass');

-- storage
SELECT pg_temp.with_change('ALTER TABLE idem_record SET UNLOGGED', 'ALTER TABLE idem_record SET LOGGED');
CREATE TABLE regress_child () INHERITS (idem_record);
SELECT codes FROM pg_temp.refusal();
DROP TABLE regress_child;
SELECT outcome FROM idem_lookup('shape', 'there');
SELECT pg_temp.with_change('CREATE TABLE regress_parent (LIKE idem_record INCLUDING GENERATED) PARTITION BY LIST (scope); ALTER TABLE regress_parent ATTACH PARTITION idem_record DEFAULT', 'ALTER TABLE regress_parent DETACH PARTITION idem_record');
DROP TABLE regress_parent;

-- something else of that name, or nothing
SELECT extnamespace::regnamespace AS ext FROM pg_extension WHERE extname = 'idempotency' \gset
CREATE FUNCTION pg_temp.in_its_place(made text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	ALTER TABLE idem_record RENAME TO idem_record_moved;
	EXECUTE made;
	RETURN QUERY SELECT concat_ws(': ', codes, message, detail) FROM pg_temp.refusal();
END $$;
BEGIN;
SELECT pg_temp.in_its_place('SELECT 1');
ROLLBACK;
BEGIN;
SELECT pg_temp.in_its_place('CREATE VIEW idem_record AS SELECT * FROM idem_record_moved');
ROLLBACK;
BEGIN;
SELECT pg_temp.in_its_place('CREATE TABLE idem_record (LIKE idem_record_moved INCLUDING GENERATED) PARTITION BY LIST (scope)');
ROLLBACK;
BEGIN;
SELECT pg_temp.in_its_place('CREATE TABLE idem_record (scope text)');
ROLLBACK;
BEGIN;
SELECT pg_temp.in_its_place('CREATE FOREIGN DATA WRAPPER regress_fdw; CREATE SERVER regress_server FOREIGN DATA WRAPPER regress_fdw; CREATE FOREIGN TABLE idem_record (scope text) SERVER regress_server');
ROLLBACK;
SELECT outcome FROM idem_lookup('shape', 'there');

-- None of that is missed where it is made in the middle of a transaction, and
-- at commit neither.
BEGIN;
SELECT outcome FROM idem_claim('shape', 'late');
SELECT idem_finish('shape', 'late');
ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_claim(''shape'', ''later'')') f;
ROLLBACK;
BEGIN;
SELECT outcome FROM idem_claim('shape', 'late');
ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY;
COMMIT;
SELECT relrowsecurity FROM pg_class WHERE oid = 'idem_record'::regclass;

-- What makes no difference is left alone: storage parameters, statistics,
-- a default, a comment, a publication, a rebuilt table or index.
CREATE FUNCTION pg_temp.accepted(change text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE change;
	RETURN f.code FROM pg_temp.failing('SELECT * FROM idem_claim(''shape'', ''new'', lease => ''1 hour'')') f;
END $$;
BEGIN;
SELECT pg_temp.accepted('ALTER TABLE idem_record SET (fillfactor = 70)');
SELECT pg_temp.accepted('ALTER TABLE idem_record ALTER response_body SET STORAGE EXTERNAL');
SELECT pg_temp.accepted('ALTER TABLE idem_record ALTER on_abandon SET DEFAULT ''retry''');
SELECT pg_temp.accepted('ALTER TABLE idem_record ALTER scope SET STATISTICS 500');
SELECT pg_temp.accepted('CREATE STATISTICS regress_statistics ON scope, state FROM idem_record');
SELECT pg_temp.accepted('ALTER INDEX idem_record_pkey RENAME TO identity');
SELECT pg_temp.accepted('REINDEX TABLE idem_record');
SELECT pg_temp.accepted('CLUSTER idem_record USING identity');
SELECT pg_temp.accepted('ALTER TABLE idem_record DROP CONSTRAINT identity; CREATE UNIQUE INDEX identity ON idem_record (scope, key, principal)');
SELECT pg_temp.accepted('CREATE UNIQUE INDEX twin ON idem_record (principal, scope, key)');
ROLLBACK;
DELETE FROM idem_record WHERE scope = 'shape' AND key = 'new';

-- Indexes that users add are maintained, of whatever kind.
CREATE INDEX regress_code ON idem_record (response_code);
CREATE INDEX regress_hash ON idem_record USING hash (token);
CREATE INDEX regress_brin ON idem_record USING brin (created_at, finished_at);
CREATE INDEX regress_gin ON idem_record USING gin (checkpoint_data);
CREATE INDEX regress_expression ON idem_record (lower(response_body)) WHERE state = 'failed';
CREATE INDEX regress_covering ON idem_record (state) INCLUDE (attempt);
CREATE UNIQUE INDEX regress_twin ON idem_record (scope, key, principal);
CREATE FUNCTION pg_temp.by_index() RETURNS TABLE (by_code text, by_hash text, by_brin text, by_gin text, by_expression text, by_covering text) LANGUAGE sql
SET enable_seqscan = off AS $$
	SELECT (SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE response_code = 402),
		(SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE token = '00000000-0000-4000-8000-000000000001'),
		(SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE finished_at > now() - interval '1 hour' AND scope = 'shape'),
		(SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE checkpoint_data @> '{"ref": 5}'),
		(SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record WHERE lower(response_body) = 'declined' AND state = 'failed'),
		(SELECT string_agg(state || ' ' || attempt, ', ' ORDER BY state) FROM idem_record WHERE state IN ('failed', 'processing') AND scope = 'shape' AND key <> 'there')
$$;
SELECT outcome FROM idem_claim('shape', 'indexed', lease => '1 hour', claim_token => '00000000-0000-4000-8000-000000000001');
SELECT * FROM pg_temp.by_index();
SELECT idem_checkpoint('shape', 'indexed', token => '00000000-0000-4000-8000-000000000001', checkpoint => 'c', checkpoint_data => '{"ref": 5}') IS NOT NULL AS recorded;
SELECT * FROM pg_temp.by_index();
SELECT idem_finish('shape', 'indexed', token => '00000000-0000-4000-8000-000000000001', state => 'failed', response_code => 402, response_body => 'DECLINED');
SELECT * FROM pg_temp.by_index();
SELECT idem_forget('shape', 'indexed');
SELECT * FROM pg_temp.by_index();
-- two unique indexes on the identity: one claim all the same
SELECT outcome FROM idem_claim('shape', 'twin', lease => '1 hour');
SELECT outcome FROM idem_claim('shape', 'twin', lease => '1 hour');
-- an index that fails fails the call, and the claim is as it was
CREATE INDEX regress_failing ON idem_record ((1 / response_code));
SELECT f.code FROM pg_temp.failing('SELECT idem_finish(''shape'', ''twin'', token => (SELECT token FROM idem_record WHERE key = ''twin''), response_code => 0)') f;
SELECT outcome FROM idem_lookup('shape', 'twin');
DROP INDEX regress_failing, regress_code, regress_hash, regress_brin, regress_gin, regress_expression, regress_covering, regress_twin;

-- A column that users add is kept through every change of the record.
SELECT count(*) FROM information_schema.columns WHERE table_name = 'idem_record' AND column_name = 'note';
UPDATE idem_record SET note = key WHERE scope = 'shape';
SELECT outcome FROM idem_claim('shape', 'later', lease => '1 hour');
SELECT idem_checkpoint('shape', 'twin', token => token, checkpoint => 'c') IS NOT NULL AS recorded FROM idem_record WHERE (scope, key) = ('shape', 'twin');
SELECT outcome FROM idem_takeover('shape', 'twin', lease => '1 hour', force => true);
SELECT idem_finish('shape', 'twin', token => token) FROM idem_record WHERE (scope, key) = ('shape', 'twin');
SELECT key, state, attempt, note FROM idem_record WHERE scope = 'shape' ORDER BY key;
-- a new life is a new record
SELECT pg_temp.pass('shape', 'twin', '1 day');
SELECT outcome, attempt FROM idem_claim('shape', 'twin', lease => '1 hour');
SELECT key, note FROM idem_record WHERE (scope, key) = ('shape', 'twin');
-- one that is dropped again, and one with a value from before its default went
ALTER TABLE idem_record DROP note;
ALTER TABLE idem_record ADD other text DEFAULT 'old';
ALTER TABLE idem_record ALTER other DROP DEFAULT;
SELECT idem_finish('shape', 'twin', token => token) FROM idem_record WHERE (scope, key) = ('shape', 'twin');
SELECT outcome FROM idem_claim('shape', 'last', lease => '1 hour');
SELECT key, other FROM idem_record WHERE scope = 'shape' ORDER BY key;
ALTER TABLE idem_record DROP other;
SELECT idem_finish('shape', 'last', token => token) FROM idem_record WHERE (scope, key) = ('shape', 'last');
SELECT key, state FROM idem_record WHERE scope = 'shape' ORDER BY key;

-- A change that a publication could not replicate is refused, as an UPDATE is.
SET client_min_messages = error;
CREATE PUBLICATION regress_idempotency FOR TABLE idem_record;
RESET client_min_messages;
ALTER TABLE idem_record REPLICA IDENTITY NOTHING;
SELECT outcome FROM idem_claim('shape', 'published', lease => '1 hour');
SELECT idem_finish('shape', 'published', token => token) FROM idem_record WHERE (scope, key) = ('shape', 'published');
SELECT idem_forget('shape', 'published');
ALTER TABLE idem_record REPLICA IDENTITY DEFAULT;
SELECT idem_finish('shape', 'published', token => token) FROM idem_record WHERE (scope, key) = ('shape', 'published');
SELECT idem_forget('shape', 'published');
DROP PUBLICATION regress_idempotency;

-- The row that is answered is formed directly, too: its type must be as it was made.
CREATE FUNCTION pg_temp.with_row_type(change text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	said text;
BEGIN
	EXECUTE change;
	SELECT string_agg(f.code || ': ' || f.message, ', ') INTO said
	FROM unnest(ARRAY['SELECT * FROM idem_claim(''shape'', ''row'', lease => ''1 hour'')', 'SELECT * FROM idem_lookup(''shape'', ''last'')']) c,
		LATERAL pg_temp.failing(c) f WHERE f.code <> 'none';
	RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = coalesce(said, 'none');
EXCEPTION WHEN SQLSTATE 'ZZ000' THEN
	RETURN SQLERRM;
END $$;
SELECT pg_temp.with_row_type('ALTER TYPE idem_lookup_row ALTER ATTRIBUTE attempt TYPE text');
SELECT pg_temp.with_row_type('ALTER TYPE idem_lookup_row ALTER ATTRIBUTE outcome TYPE integer');
SELECT pg_temp.with_row_type('ALTER TYPE idem_lookup_row DROP ATTRIBUTE expires_at');
SELECT pg_temp.with_row_type('ALTER TYPE idem_claim_row ADD ATTRIBUTE more text');
SELECT pg_temp.with_row_type('ALTER TYPE idem_claim_row ALTER ATTRIBUTE token TYPE text');
SELECT pg_temp.with_row_type('ALTER TYPE idem_claim_row RENAME ATTRIBUTE token TO proof');
SELECT outcome FROM idem_lookup('shape', 'last');

DELETE FROM idem_record WHERE scope = 'shape';
-- dropped columns stay in the catalog: leave a table behind as it was made
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
