--
-- Isolation levels, read-only transactions, and calls in odd places.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- One transaction of each level: claim, in_progress, finish, replay, lookup,
-- mismatch, forget and claim again, with business rows beside.
CREATE TEMP TABLE business (n int);
CREATE FUNCTION pg_temp.protocol(_key text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	seen text := current_setting('transaction_isolation') || ':';
	got text;
BEGIN
	SELECT outcome INTO got FROM idem_claim('levels', _key, request => '1');
	seen := seen || ' ' || got;
	SELECT outcome INTO got FROM idem_claim('levels', _key, request => '1');
	seen := seen || ' ' || got;
	INSERT INTO business VALUES (1);
	seen := seen || ' ' || idem_finish('levels', _key, response_code => 200)::text;
	SELECT outcome INTO got FROM idem_claim('levels', _key, request => '1');
	seen := seen || ' ' || got;
	SELECT outcome INTO got FROM idem_claim('levels', _key, request => '2');
	seen := seen || ' ' || got;
	SELECT outcome INTO got FROM idem_lookup('levels', _key);
	seen := seen || ' ' || got;
	seen := seen || ' ' || idem_forget('levels', _key)::text;
	SELECT outcome INTO got FROM idem_lookup('levels', _key);
	seen := seen || ' ' || got;
	SELECT outcome INTO got FROM idem_claim('levels', _key, lease => '1 hour');
	seen := seen || ' ' || got;
	PERFORM idem_extend('levels', _key);
	PERFORM idem_checkpoint('levels', _key, checkpoint => 'c');
	PERFORM idem_assert('levels', _key);
	seen := seen || ' ' || idem_finish('levels', _key, state => 'unknown')::text;
	SELECT outcome INTO got FROM idem_takeover('levels', _key);
	seen := seen || ' ' || got;
	seen := seen || ' ' || idem_finish('levels', _key, state => 'released')::text;
	SELECT outcome INTO got FROM idem_resolve('levels', _key, state => 'succeeded');
	seen := seen || ' ' || got;
	seen := seen || ' ' || idem_once('levels', _key)::text || ' ' || idem_once('levels', _key || ' message')::text;
	seen := seen || ' ' || (SELECT unresolved FROM idem_sweep());
	RETURN seen;
END $$;
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT pg_temp.protocol('rc');
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT pg_temp.protocol('rr');
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT pg_temp.protocol('s');
COMMIT;
SELECT count(*) FROM business;

-- what happened outside of the snapshot is known all the same
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS snapshot FROM business;
SELECT outcome FROM idem_claim('levels', 'later', lease => '1 ms');
SELECT pg_sleep(0.01);
COMMIT;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT count(*) > 0 AS snapshot FROM business;
SELECT pg_sleep(0.01);
SELECT outcome FROM idem_claim('levels', 'later');
SELECT outcome FROM idem_takeover('levels', 'later');
SELECT idem_finish('levels', 'later');
COMMIT;

-- An application must not break on fresh keys alone: every writing call is
-- refused in a read-only transaction, whatever its arguments, and also where
-- it would only have replayed.
BEGIN READ ONLY;
SELECT v.call, f.code, f.message FROM (VALUES
	(1, 'claim', 'SELECT * FROM idem_claim(''levels'', ''rc'')'),
	(2, 'claim, badly', 'SELECT * FROM idem_claim('''', NULL, ttl => ''-1 s'')'),
	(3, 'finish', 'SELECT idem_finish(''levels'', ''rc'')'),
	(4, 'extend', 'SELECT idem_extend(''levels'', ''rc'')'),
	(5, 'checkpoint', 'SELECT idem_checkpoint(''levels'', ''rc'')'),
	(6, 'assert', 'SELECT idem_assert(''levels'', ''rc'')'),
	(7, 'once', 'SELECT idem_once(''levels'', ''rc'')'),
	(8, 'once_batch', 'SELECT idem_once_batch(''levels'', ''{}'')'),
	(9, 'execute', 'SELECT * FROM idem_execute(''levels'', ''rc'', command => ''SELECT 1'')'),
	(10, 'sweep', 'SELECT * FROM idem_sweep()'),
	(11, 'sweep_all', 'CALL idem_sweep_all()'),
	(12, 'takeover', 'SELECT * FROM idem_takeover(''levels'', ''rc'')'),
	(13, 'resolve', 'SELECT * FROM idem_resolve(''levels'', ''rc'', state => ''failed'')'),
	(14, 'forget', 'SELECT idem_forget(''levels'', ''none'')'),
	(15, 'lookup', 'SELECT * FROM idem_lookup(''levels'', ''rc'')'),
	(16, 'fingerprint', 'SELECT idem_fingerprint(''1'')')) v(n, call, statement),
	LATERAL pg_temp.failing(v.statement) f ORDER BY v.n;
COMMIT;
SET default_transaction_read_only = on;
SELECT outcome FROM idem_claim('levels', 'rc');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('levels', 'rc');
RESET default_transaction_read_only;

-- a claim that was made before the transaction became read-only is still its own
BEGIN;
SELECT outcome FROM idem_claim('levels', 'turned');
SET TRANSACTION READ ONLY;
COMMIT;
\echo :LAST_ERROR_SQLSTATE

-- not in a parallel worker, even if somebody marks the function as safe
BEGIN;
SELECT set_config(CASE WHEN current_setting('server_version_num')::int >= 160000 THEN 'debug_parallel_query' ELSE 'force_parallel_mode' END, 'on', true);
SELECT set_config('max_parallel_workers_per_gather', '2', true);
ALTER FUNCTION idem_once PARALLEL SAFE;
SELECT f.code, f.message FROM pg_temp.failing('SELECT idem_once(''levels'', ''rc'')') f;
ROLLBACK;

-- in a trigger, in a CTE, in a set operation, in a prepared statement
CREATE TEMP TABLE inbox (message text);
CREATE FUNCTION pg_temp.dedupe() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	RETURN CASE WHEN idem_once('levels inbox', NEW.message) THEN NEW END;
END $$;
CREATE TRIGGER dedupe BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION pg_temp.dedupe();
INSERT INTO inbox VALUES ('a'), ('b'), ('a');
INSERT INTO inbox VALUES ('b'), ('c');
SELECT message FROM inbox ORDER BY message;
BEGIN;
WITH claim AS (SELECT * FROM idem_claim('levels', 'cte')),
	work AS (INSERT INTO business SELECT 2 FROM claim WHERE outcome = 'claimed' RETURNING n)
SELECT idem_finish('levels', 'cte', response_body => n::text) FROM work;
WITH claim AS (SELECT * FROM idem_claim('levels', 'cte')),
	work AS (INSERT INTO business SELECT 2 FROM claim WHERE outcome = 'claimed' RETURNING n)
SELECT c.outcome, c.response_body, (SELECT count(*) FROM work) FROM claim c;
COMMIT;
PREPARE claim(text) AS SELECT outcome FROM idem_claim('levels', $1, lease => '1 hour');
EXECUTE claim('p1');
EXECUTE claim('p1');
EXECUTE claim('p2');
EXECUTE claim('p2');
EXECUTE claim('p3');
EXECUTE claim('p3');
EXECUTE claim('p3');
DEALLOCATE claim;

-- after other schemas and a move of the extension: by the function's schema
CREATE SCHEMA regress_moved;
SELECT extnamespace::regnamespace AS ext FROM pg_extension WHERE extname = 'idempotency' \gset
SELECT outcome FROM idem_claim('levels', 'moved', lease => '1 hour');
ALTER EXTENSION idempotency SET SCHEMA regress_moved;
SELECT outcome FROM regress_moved.idem_claim('levels', 'moved', lease => '1 hour');
SET search_path = pg_catalog;
SELECT outcome FROM regress_moved.idem_lookup('levels', 'moved');
SELECT count(*) FROM regress_moved.idem_unresolved;
RESET search_path;
ALTER EXTENSION idempotency SET SCHEMA :ext;
DROP SCHEMA regress_moved;
SELECT outcome FROM idem_lookup('levels', 'moved');

DELETE FROM idem_record WHERE scope IN ('levels', 'levels inbox');
