--
-- Whatever is done to the extension's objects, a call that cannot go on says
-- so by a SQLSTATE, a message and a hint, and nothing of it is half done.
-- Never by an internal error.
--
\set ON_ERROR_STOP on
SET client_min_messages = error;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;

SELECT plan(54);

-- What a statement ends with, undone: SQLSTATE, message, detail, hint.
CREATE FUNCTION pg_temp.ending(_statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	_code text;
	_message text;
	_detail text;
	_hint text;
BEGIN
	EXECUTE _statement;
	RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = 'none';
EXCEPTION WHEN OTHERS THEN
	GET STACKED DIAGNOSTICS _code = RETURNED_SQLSTATE, _message = MESSAGE_TEXT,
		_detail = PG_EXCEPTION_DETAIL, _hint = PG_EXCEPTION_HINT;
	RETURN CASE _code WHEN 'ZZ000' THEN 'none'
		ELSE concat_ws(' / ', _code, _message, nullif(_detail, ''), nullif(_hint, '')) END;
END $$;
-- the same after changes that are undone with it
CREATE FUNCTION pg_temp.ending_after(_changes text, _statement text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	_ending text;
BEGIN
	EXECUTE _changes;
	_ending := pg_temp.ending(_statement);
	RAISE EXCEPTION USING ERRCODE = 'ZZ000', MESSAGE = _ending;
EXCEPTION WHEN SQLSTATE 'ZZ000' THEN
	RETURN SQLERRM;
END $$;

-- ---------------------------------------------------------------------------
-- What a call stands on is gone by the time it gets there
-- ---------------------------------------------------------------------------
CREATE FUNCTION gone_extension() RETURNS int LANGUAGE plpgsql AS $$
BEGIN DROP EXTENSION idempotency; RETURN 1; END $$;
CREATE FUNCTION gone_and_back() RETURNS int LANGUAGE plpgsql AS $$
BEGIN DROP EXTENSION idempotency; CREATE EXTENSION idempotency; RETURN 1; END $$;
CREATE FUNCTION gone_function() RETURNS int LANGUAGE plpgsql AS $$
BEGIN ALTER EXTENSION idempotency DROP FUNCTION idem_execute; DROP FUNCTION idem_execute; RETURN 1; END $$;
CREATE FUNCTION gone_type() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	ALTER EXTENSION idempotency DROP FUNCTION idem_execute;
	ALTER EXTENSION idempotency DROP FUNCTION idem_claim;
	ALTER EXTENSION idempotency DROP FUNCTION idem_takeover;
	ALTER EXTENSION idempotency DROP TYPE idem_claim_row;
	DROP TYPE idem_claim_row CASCADE;
	RETURN 1;
END $$;
CREATE FUNCTION gone_policy() RETURNS int LANGUAGE plpgsql AS $$
BEGIN
	ALTER EXTENSION idempotency DROP TABLE idem_policy;
	DROP TABLE idem_policy CASCADE;
	RETURN 1;
END $$;

\set dropped '55000 / the function was dropped during the call / Drop the extension in a statement of its own, and call again once it is there.'
SELECT is(pg_temp.ending(format('SELECT * FROM idem_execute(''errors'', ''gone'', command => %L)', c)), :'dropped',
	'idem_execute of ' || c)
FROM unnest('{DROP EXTENSION idempotency,DROP EXTENSION idempotency CASCADE,SELECT gone_extension(),SELECT gone_and_back(),SELECT gone_function(),SELECT gone_type()}'::text[]) c;
SELECT is(pg_temp.ending(format('SELECT gone_extension(), %s', c)), :'dropped', 'the extension goes before ' || c || ' in one statement')
FROM unnest(ARRAY['idem_lookup(''errors'', ''gone'')', 'idem_once(''errors'', ''gone'')', 'idem_sweep()',
	'idem_once_batch(''errors'', ''{gone}'')', 'idem_forget(''errors'', ''gone'')']) c;
SELECT is(pg_temp.ending('SELECT * FROM idem_execute(''errors'', ''gone'', command => ''ALTER TABLE idem_record RENAME TO other'')'),
	'55000 / table "idem_record" not found in the schema of function "idem_execute" / Call the functions that CREATE EXTENSION idempotency made.',
	'idem_execute of a command that renames the table');
SELECT is(pg_temp.ending('SELECT gone_policy(), idem_once(''errors'', ''gone'')'),
	'55000 / table "idem_policy" not found in the schema of table "idem_record" / Restore the table that CREATE EXTENSION idempotency made.',
	'the policies go before a call in one statement');
SELECT is(outcome, 'absent', 'nothing of all that is left') FROM idem_lookup('errors', 'gone');
SELECT ok(EXISTS (SELECT FROM pg_extension WHERE extname = 'idempotency'), 'but the extension');

-- what leaves all in its place, moved or rebuilt, is a command like others
CREATE SCHEMA errors_other;
SELECT is(pg_temp.ending(format('SELECT * FROM idem_execute(''errors'', ''kept'', command => %L)', c)), 'none', 'idem_execute of ' || c)
FROM unnest('{ALTER EXTENSION idempotency SET SCHEMA errors_other,ALTER EXTENSION idempotency UPDATE,REINDEX TABLE idem_record,CLUSTER idem_record USING idem_record_pkey,ALTER TABLE idem_record ADD note text,ALTER TABLE idem_record SET (fillfactor = 70),UPDATE idem_record SET attempt = 7}'::text[]) c;

-- ---------------------------------------------------------------------------
-- A parallel operation, by way of functions that say they were safe for it
-- ---------------------------------------------------------------------------
CREATE TABLE errors_many AS SELECT n::text AS key FROM generate_series(1, 10000) n;
CREATE FUNCTION pretended_lookup(_key text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN RETURN (idem_lookup('errors', _key)).outcome; END $$;
CREATE FUNCTION pretended_once(_key text) RETURNS text LANGUAGE plpgsql PARALLEL SAFE AS $$
BEGIN RETURN idem_once('errors', _key); END $$;
CREATE FUNCTION pretended_leader(_key text) RETURNS text LANGUAGE plpgsql PARALLEL RESTRICTED AS $$
BEGIN RETURN (idem_lookup('errors', _key)).outcome; END $$;
SET LOCAL parallel_setup_cost = 0;
SET LOCAL parallel_tuple_cost = 0;
SET LOCAL min_parallel_table_scan_size = 0;
SET LOCAL parallel_leader_participation = off;
SELECT is(pg_temp.ending('SELECT count(*) FROM errors_many WHERE pretended_lookup(key) = ''absent'''),
	'25000 / cannot execute idem_lookup() during a parallel operation', 'a lookup in a parallel worker');
SELECT is(pg_temp.ending('SELECT count(*) FROM errors_many WHERE pretended_once(key)::boolean'),
	'25000 / cannot execute idem_once() during a parallel operation', 'a mark in a parallel worker');
SELECT is(pg_temp.ending('SELECT pretended_leader(max(key)) FROM errors_many'),
	'25000 / cannot execute idem_lookup() during a parallel operation', 'a lookup in the leader of a parallel operation');
SET LOCAL max_parallel_workers_per_gather = 0;

-- ---------------------------------------------------------------------------
-- A statement that writes to the table and calls in the middle of it
-- ---------------------------------------------------------------------------
SELECT outcome FROM idem_claim('errors', 'k', lease => '1 h', claim_token => '00000000-0000-4000-8000-000000000001') \gset
SELECT is(pg_temp.ending(format($$WITH w AS (UPDATE idem_record SET checkpoint = 'c' WHERE scope = 'errors' AND key = 'k' RETURNING token) SELECT %s FROM w$$, c)),
	'27000 / record of idempotency key "k" in scope "errors" was written by the statement that calls the function / Write to the table and call the function in separate statements.',
	'WITH an UPDATE of the record: ' || c)
FROM unnest(ARRAY['idem_finish(''errors'', ''k'', token => token)', 'idem_extend(''errors'', ''k'', token => token)',
	'idem_checkpoint(''errors'', ''k'', token => token, checkpoint => ''d'')', 'idem_forget(''errors'', ''k'')']) c;
SELECT is(pg_temp.ending(format($$WITH w AS (UPDATE idem_record SET state = 'released', finished_at = now(), lease_expires_at = NULL, expires_at = now() - interval '1 s'
		WHERE scope = 'errors' AND key = 'k' RETURNING token) SELECT %s FROM w$$, c)),
	'27000 / record of idempotency key "k" in scope "errors" was written by the statement that calls the function / Write to the table and call the function in separate statements.',
	'WITH an UPDATE that makes it expire: ' || c)
FROM unnest(ARRAY['idem_claim(''errors'', ''k'', lease => ''1 h'')', 'idem_once(''errors'', ''k'')', 'idem_sweep()']) c;
SELECT is(pg_temp.ending($$WITH w AS (UPDATE idem_record SET checkpoint = 'c' WHERE scope = 'errors' AND key = 'k' RETURNING token)
	SELECT idem_assert('errors', 'k', token => token), idem_lookup('errors', 'k') FROM w$$), 'none', 'what does not write may be called there');
SELECT is(pg_temp.ending($$WITH w AS (DELETE FROM idem_record WHERE scope = 'errors' AND key = 'k' RETURNING token)
	SELECT idem_finish('errors', 'k', token => token) FROM w$$),
	'ID001 / the claim of idempotency key "k" in scope "errors" is lost / It is gone: expired and swept, or forgotten. / Roll back; the outcome of whoever holds the key now is the one that counts.',
	'WITH a DELETE of the record it is gone');
SELECT is(state || ' ' || attempt || coalesce(checkpoint, ''), 'processing 1', 'the record is as it was') FROM idem_record WHERE scope = 'errors';

-- ---------------------------------------------------------------------------
-- Rows that the extension would not write; most take other constraints of the same names
-- ---------------------------------------------------------------------------
\set loosen 'ALTER TABLE idem_record DROP CONSTRAINT idem_record_state_check, ADD CONSTRAINT idem_record_state_check CHECK (true), DROP CONSTRAINT idem_record_lease_check, ADD CONSTRAINT idem_record_lease_check CHECK (true), DROP CONSTRAINT idem_record_fingerprint_check, ADD CONSTRAINT idem_record_fingerprint_check CHECK (true); UPDATE idem_record SET '
SELECT is(pg_temp.ending_after(:'loosen' || change, 'SELECT idem_lookup(''errors'', ''k'')'),
	'55000 / record of idempotency key "k" in scope "errors" cannot be used / ' || detail
	|| ' / The extension did not write it: correct or delete the row, and restore the table''s constraints if they were changed.', change)
FROM (VALUES ('state = ''done''', 'Its state is not one that the extension knows.'),
	('on_abandon = ''never''', 'Its on_abandon is not one that the extension knows.'),
	('ttl = ''100000000 years''', 'Its ttl is out of range.'),
	('ttl = ''-1 s''', 'Its ttl is out of range.'),
	('lease = ''280000 years''', 'Its lease is out of range.'),
	('fingerprint = ''\x00''', 'Its fingerprint is not 32 bytes long.')) v(change, detail);
SELECT is(pg_temp.ending_after(:'loosen' || 'ttl = ''-1 s''', c), pg_temp.ending_after(:'loosen' || 'ttl = ''-1 s''', 'SELECT idem_lookup(''errors'', ''k'')'), 'the same is said by ' || c)
FROM unnest(ARRAY['SELECT idem_claim(''errors'', ''k'')', 'SELECT idem_extend(''errors'', ''k'')', 'SELECT idem_forget(''errors'', ''k'')']) c;
-- one such row does not stop the sweep
SELECT is(pg_temp.ending_after(:'loosen' || $$expires_at = now() - interval '1 h', state = 'succeeded', finished_at = now(), lease_expires_at = NULL, ttl = '-1 s';
	INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at, expires_at, ttl, on_abandon, recovered, progressed, finished_at)
	SELECT scope, 'l', principal, state, attempt, token, created_at, claimed_at, now() - interval '1 s', '1 h', on_abandon, recovered, progressed, finished_at FROM idem_record$$,
	'SELECT 1 / (deleted = 1 AND NOT more)::int FROM idem_sweep()'), 'none', 'the sweep passes it over and deletes the next');

\set loosen 'ALTER TABLE idem_policy DROP CONSTRAINT idem_policy_scope_check, DROP CONSTRAINT idem_policy_ttl_check, DROP CONSTRAINT idem_policy_lease_check, DROP CONSTRAINT idem_policy_wait_check, DROP CONSTRAINT idem_policy_on_abandon_check; INSERT INTO idem_policy (scope, ttl, lease, wait, on_abandon) VALUES '
SELECT is(pg_temp.ending_after(:'loosen' || policy, 'SELECT idem_lookup(''errors'', ''k'')'),
	'55000 / policy of scope "' || scope || '" cannot be used / ' || detail
	|| ' / Correct or delete the row in idem_policy, and restore the table''s constraints.', 'a policy: ' || detail)
FROM (VALUES ('(''errors'', ''0 s'', NULL, NULL, NULL)', 'errors', 'Its ttl is out of range.'),
	('(''errors'', NULL, ''100000000 years'', NULL, NULL)', 'errors', 'Its lease is out of range.'),
	('(''errors'', NULL, NULL, ''-1 s'', NULL)', 'errors', 'Its wait is out of range.'),
	('(''errors'', NULL, NULL, NULL, ''never'')', 'errors', 'Its on_abandon is neither unknown nor retry.'),
	('(repeat(''x'', 300), NULL, NULL, NULL, NULL)', repeat('x', 255), 'Its scope is too long.')) v(policy, scope, detail);

-- From PostgreSQL 18 on a column can be called not null while it has nulls.
CREATE FUNCTION pg_temp.null_token() RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	ALTER TABLE idem_record ALTER token DROP NOT NULL;
	UPDATE idem_record SET token = NULL;
	IF current_setting('server_version_num')::int >= 180000 THEN
		EXECUTE 'ALTER TABLE idem_record ADD CONSTRAINT c NOT NULL token NOT VALID';
	END IF;
	RETURN pg_temp.ending('SELECT idem_lookup(''errors'', ''k'')');
END $$;
SELECT is(pg_temp.null_token(),
	'55000 / table "idem_record" cannot be used by the extension / A column was dropped, renamed or changed. / Undo the change; the extension goes to this table directly and would bypass what it does not know.',
	'a not null constraint that is not valid');

-- ---------------------------------------------------------------------------
-- The library's functions under another declaration
-- ---------------------------------------------------------------------------
SELECT is(pg_temp.ending_after('CREATE FUNCTION sweep_of_another_type(int) RETURNS ' || result || ' LANGUAGE c AS ''$libdir/idempotency'', ''idem_sweep''', 'SELECT sweep_of_another_type(1)'),
	'55000 / function "sweep_of_another_type" does not return the row that it should / Restore the row type that the extension made.', 'a sweep that returns ' || result)
FROM unnest('{bigint,idem_claim_row,"TABLE (a text, b text, c text)"}'::text[]) result;

SELECT * FROM finish();
ROLLBACK;
