--
-- idem_execute: claim, command and stored result in one call.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

CREATE TEMP TABLE orders (id int, item text);
CREATE TEMP SEQUENCE runs;

-- executed, then replayed, for it ran once
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'a', 'me', '{"item": "tea"}',
	'INSERT INTO orders VALUES (nextval(''runs''), $1->>''item'') RETURNING row_to_json(orders), 201') e;
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'a', 'me', '{"item": "tea"}',
	'INSERT INTO orders VALUES (nextval(''runs''), $1->>''item'') RETURNING row_to_json(orders), 201') e;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('execute', 'a', 'me', request => '{"item": "tea"}') c;
SELECT pg_temp.kept('execute', 'a', 'me');
-- another request is refused, another command for the same request is not looked at
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'a', 'me', '{"item": "milk"}', 'SELECT nextval(''runs'')') e;
SELECT outcome, response_body FROM idem_execute('execute', 'a', 'me', '{"item": "tea"}', 'nonsense');
SELECT last_value, (SELECT count(*) FROM orders) FROM runs;

-- what a command may return, and what is stored of it
CREATE FUNCTION pg_temp.run(_command text, _request jsonb DEFAULT NULL) RETURNS TABLE (result jsonb, error text) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM idem_forget('execute', 'run');
	BEGIN
		SELECT pg_temp.seen(to_jsonb(e) - '{outcome,state,attempt,recovered,expires_at}'::text[]) INTO result
		FROM idem_execute('execute', 'run', request => _request, command => _command) e;
		IF result IS DISTINCT FROM (SELECT pg_temp.seen(to_jsonb(l) - '{outcome,state,attempt,expires_at}'::text[]) FROM idem_lookup('execute', 'run') l) THEN
			error := 'another result is replayed';
		END IF;
	EXCEPTION WHEN OTHERS THEN
		result := NULL;
		error := concat_ws(': ', SQLSTATE, SQLERRM);
	END;
	IF error IS NOT NULL AND EXISTS (SELECT FROM idem_record WHERE (scope, key) = ('execute', 'run')) THEN
		error := error || ': a claim is left';
	END IF;
	RETURN NEXT;
END $$;
SELECT * FROM pg_temp.run('SELECT 1');
SELECT * FROM pg_temp.run('SELECT ''text'', 200');
SELECT * FROM pg_temp.run('SELECT NULL::text, 204::smallint');
SELECT * FROM pg_temp.run('SELECT ''x'', -1::bigint');
SELECT * FROM pg_temp.run('SELECT ''x'', NULL::int');
SELECT * FROM pg_temp.run('SELECT true');
SELECT * FROM pg_temp.run('SELECT ''\x00ff''::bytea');
SELECT * FROM pg_temp.run('SELECT ''{"b":  1, "a": 1.50}''::json');
SELECT * FROM pg_temp.run('SELECT ''{"b":  1, "a": 1.50}''::jsonb');
SELECT * FROM pg_temp.run('SELECT ARRAY[1, NULL]');
SELECT * FROM pg_temp.run('SELECT ROW(1, ''a b'')');
SELECT * FROM pg_temp.run('SELECT $1', '{"the": "request"}');
SELECT * FROM pg_temp.run('SELECT $1 IS NULL');
SELECT * FROM pg_temp.run('SELECT $1 + 1');
SELECT * FROM pg_temp.run('SELECT 1;');
SELECT * FROM pg_temp.run('SELECT 1 -- and a comment');
SELECT * FROM pg_temp.run('SELECT 1 WHERE false');
SELECT * FROM pg_temp.run('SELECT');
SELECT * FROM pg_temp.run('INSERT INTO orders VALUES (10, ''no RETURNING'')');
SELECT * FROM pg_temp.run('INSERT INTO orders SELECT 11, ''many'' FROM generate_series(1, 3)');
SELECT * FROM pg_temp.run('UPDATE orders SET item = item || ''!'' WHERE id IN (10, 11)');
SELECT * FROM pg_temp.run('DELETE FROM orders WHERE id = 10 RETURNING item');
SELECT * FROM pg_temp.run('DELETE FROM orders WHERE id = 10 RETURNING item');
SELECT * FROM pg_temp.run('WITH d AS (DELETE FROM orders WHERE id = 11 RETURNING item) SELECT count(*), 200 FROM d');
SELECT * FROM pg_temp.run('VALUES (1, 2)');
SELECT * FROM pg_temp.run('CREATE TEMP TABLE made (n int)');
SELECT * FROM pg_temp.run('SHOW server_encoding') WHERE error IS NOT NULL;

-- what it may not: an error, and neither a claim nor an effect is left
SELECT * FROM pg_temp.run('SELECT generate_series(1, 2)');
SELECT * FROM pg_temp.run('INSERT INTO orders SELECT n FROM generate_series(20, 24) n RETURNING id');
SELECT * FROM pg_temp.run('SELECT 1, ''200''');
SELECT * FROM pg_temp.run('SELECT 1, 200.0');
SELECT * FROM pg_temp.run('SELECT 1, 2147483648');
SELECT * FROM pg_temp.run('SELECT 1, -2147483649');
SELECT * FROM pg_temp.run('SELECT 1, 2, 3');
SELECT * FROM pg_temp.run('');
SELECT * FROM pg_temp.run('SELECT 1; SELECT 2');
SELECT * FROM pg_temp.run('SELEC 1');
SELECT * FROM pg_temp.run('SELECT $2');
SELECT * FROM pg_temp.run('SELECT 1 / 0');
SELECT * FROM pg_temp.run('SELECT * FROM nowhere');
SELECT * FROM pg_temp.run('COMMIT');
SELECT * FROM pg_temp.run('ROLLBACK');
SELECT * FROM pg_temp.run('SAVEPOINT s');
SELECT * FROM pg_temp.run('COPY orders TO STDOUT');
SELECT * FROM pg_temp.run('INSERT INTO orders VALUES (30) RETURNING 1 / (id - 30)');
SELECT * FROM orders ORDER BY id;
SELECT f.code, f.argument FROM pg_temp.failing('SELECT * FROM idem_execute(''execute'', ''none'', command => ''SELECT 1; SELECT 2'')') f;

-- a command that meddles with its own claim
SELECT * FROM pg_temp.run('SELECT idem_forget(''execute'', ''run'')');
SELECT * FROM pg_temp.run('SELECT idem_finish(''execute'', ''run'', state => ''failed'')');
SELECT * FROM pg_temp.run('SELECT idem_finish(''execute'', ''run'', state => ''released'')');
SELECT * FROM pg_temp.run('SELECT idem_finish(''execute'', ''run'', response_body => ''something else'')');
SELECT * FROM pg_temp.run('SELECT outcome FROM idem_claim(''execute'', ''run'')');
SELECT * FROM pg_temp.run('SELECT outcome FROM idem_execute(''execute'', ''run'', command => ''SELECT 1'')');

-- a command that executes another
SELECT outcome, response_body FROM idem_execute('execute', 'outer', command =>
	'SELECT response_body || '' within'' FROM idem_execute(''execute'', ''inner'', command => ''SELECT ''''result'''''')');
SELECT key, response_body FROM idem_record WHERE scope = 'execute' AND key IN ('outer', 'inner') ORDER BY key;

-- too large a result: nothing is done
SET idempotency.max_response = '3';
SELECT * FROM pg_temp.run('INSERT INTO orders VALUES (40, ''x'') RETURNING ''abcd''');
SELECT * FROM pg_temp.run('SELECT ''abc''');
SELECT * FROM pg_temp.run('SELECT '''', 1');
RESET idempotency.max_response;
SELECT count(*) FROM orders WHERE id = 40;

-- times: ttl as given, no lease whatever the setting, a wait that ends
SET idempotency.lease = '1h';
SET idempotency.ttl = '2h';
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'b', command => 'SELECT 1') e;
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'c', '', NULL, 'SELECT 1', '3 hours', '0') e;
RESET idempotency.lease;
RESET idempotency.ttl;
SELECT outcome FROM idem_claim('execute', 'd', lease => '1 hour');
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'd', command => 'SELECT nextval(''runs'')', wait => '20 ms') e;

-- a record of another attempt: released, abandoned, unknown, expired
SELECT idem_finish('execute', 'd', token => token, state => 'released') FROM idem_record WHERE (scope, key) = ('execute', 'd');
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'd', command => 'SELECT 1') e;
SELECT outcome FROM idem_claim('execute', 'e', lease => '1 hour', on_abandon => 'retry');
SELECT idem_checkpoint('execute', 'e', token => token, checkpoint => 'point') IS NOT NULL AS recorded FROM idem_record WHERE (scope, key) = ('execute', 'e');
SELECT pg_temp.pass('execute', 'e', '1 hour');
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'e', command => 'SELECT 1') e;
SELECT outcome FROM idem_claim('execute', 'f', lease => '1 hour');
SELECT pg_temp.pass('execute', 'f', '1 hour');
SELECT pg_temp.seen(to_jsonb(e)) FROM idem_execute('execute', 'f', command => 'SELECT nextval(''runs'')') e;
SELECT pg_temp.pass('execute', 'd', '1 day');
SELECT outcome, attempt, response_body FROM idem_execute('execute', 'd', command => 'SELECT 2');
SELECT last_value FROM runs;

-- inside a larger transaction, at every isolation level
BEGIN;
SELECT outcome FROM idem_execute('execute', 'g', command => 'INSERT INTO orders VALUES (50)');
SAVEPOINT s;
SELECT outcome FROM idem_execute('execute', 'h', command => 'INSERT INTO orders VALUES (51)');
ROLLBACK TO s;
SELECT outcome FROM idem_execute('execute', 'g', command => 'INSERT INTO orders VALUES (52)');
COMMIT;
SELECT id FROM orders WHERE id >= 50 ORDER BY id;
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT outcome, response_body FROM idem_execute('execute', 'i', command => 'INSERT INTO orders VALUES (53) RETURNING id');
SELECT outcome, response_body FROM idem_execute('execute', 'i', command => 'INSERT INTO orders VALUES (53) RETURNING id');
SELECT id FROM orders WHERE id >= 53 ORDER BY id;
COMMIT;
BEGIN ISOLATION LEVEL SERIALIZABLE;
SELECT outcome, response_body FROM idem_execute('execute', 'j', command => 'INSERT INTO orders VALUES (54) RETURNING id');
COMMIT;

-- The plan is kept, and follows what it depends on.
CREATE SCHEMA regress_one;
CREATE SCHEMA regress_two;
CREATE TABLE regress_one.place (name text);
CREATE TABLE regress_two.place (name text);
INSERT INTO regress_one.place VALUES ('one');
INSERT INTO regress_two.place VALUES ('two');
\set command '''SELECT name FROM place'''

SET search_path = regress_one, public;
SELECT response_body FROM idem_execute('execute', 'k1', command => :command);
SET search_path = regress_two, public;
SELECT response_body FROM idem_execute('execute', 'k2', command => :command);
ALTER TABLE regress_two.place ADD COLUMN first int DEFAULT 7;
ALTER TABLE regress_two.place DROP COLUMN name;
ALTER TABLE regress_two.place RENAME first TO name;
SELECT response_body FROM idem_execute('execute', 'k3', command => :command);
DROP TABLE regress_two.place;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_execute(''execute'', ''k4'', command => ''SELECT name FROM place'')') f;
CREATE VIEW regress_two.place AS SELECT 'a view'::text AS name;
SELECT response_body FROM idem_execute('execute', 'k4', command => :command);
RESET search_path;
SET client_min_messages = warning;
DROP SCHEMA regress_one, regress_two CASCADE;
RESET client_min_messages;

-- more texts than are kept, twice over
SELECT count(*), count(*) FILTER (WHERE e.response_body = n::text) AS right
FROM generate_series(1, 200) n, LATERAL idem_execute('execute', 'many ' || n, command => 'SELECT ' || n) e;
SELECT count(*), count(*) FILTER (WHERE e.response_body = n::text) AS right
FROM generate_series(1, 200) n, LATERAL idem_execute('execute', 'again ' || n, command => 'SELECT ' || n) e;
SELECT pg_temp.failing('SELECT * FROM idem_execute(''execute'', ''never'', command => ''SELECT nonsense'')') IS NOT NULL FROM generate_series(1, 3);
SELECT count(*) < 100 AS bounded FROM pg_backend_memory_contexts WHERE name = 'CachedPlanSource' AND ident ~ '^SELECT [0-9]+$';

-- a plan that is running is not one of those that go
CREATE FUNCTION regress_many() RETURNS bigint LANGUAGE sql AS $$
	SELECT count(*) FROM generate_series(1, 100) n, LATERAL idem_execute('execute', 'inner ' || n, command => 'SELECT -' || n) e
	WHERE e.response_body = (-n)::text
$$;
SELECT response_body FROM idem_execute('execute', 'evicting', command => 'SELECT regress_many()');
SELECT response_body FROM idem_execute('execute', 'evicting again', command => 'SELECT regress_many()');
DROP FUNCTION regress_many;

-- a code that is null, of every integer type
SELECT t, e.outcome, e.response_body, e.response_code
FROM unnest('{smallint,integer,bigint}'::text[]) t, LATERAL idem_execute('execute', 'null ' || t, command => format('SELECT 1, NULL::%s', t)) e;

-- a command that changes its own record, moves it or takes it away
CREATE FUNCTION pg_temp.meddle(_key text, _command text) RETURNS TABLE (result jsonb, error text, kept jsonb) LANGUAGE plpgsql AS $$
BEGIN
	BEGIN
		SELECT pg_temp.seen(to_jsonb(e) - '{attempt,recovered,expires_at}'::text[]) INTO result
		FROM idem_execute('execute', _key, command => _command) e;
	EXCEPTION WHEN OTHERS THEN
		error := SQLSTATE;
	END;
	SELECT pg_temp.seen(to_jsonb(l) - '{attempt,expires_at}'::text[]) INTO kept FROM idem_lookup('execute', _key) l;
	RETURN NEXT;
END $$;
CREATE FUNCTION regress_rewrite(how text) RETURNS text LANGUAGE plpgsql AS $$ BEGIN EXECUTE how; RETURN 'rewritten'; END $$;
SELECT * FROM pg_temp.meddle('moved', $$UPDATE idem_record SET checkpoint = 'meddled' WHERE key = 'moved' RETURNING checkpoint$$);
SELECT checkpoint FROM idem_record WHERE key = 'moved';
SELECT * FROM pg_temp.meddle('deleted', $$DELETE FROM idem_record WHERE key = 'deleted' RETURNING key$$);
SELECT * FROM pg_temp.meddle('rewritten', $$SELECT regress_rewrite('CLUSTER idem_record USING idem_record_pkey')$$);
SELECT * FROM pg_temp.meddle('emptied', $$SELECT regress_rewrite('TRUNCATE idem_record')$$);
-- emptied in place, since the file is this transaction's own
\set VERBOSITY terse
BEGIN;
TRUNCATE idem_record;
SELECT outcome FROM idem_execute('execute', 'emptied', command => 'TRUNCATE idem_record');
ROLLBACK;
\set VERBOSITY default
SELECT * FROM pg_temp.meddle('forgotten', $$SELECT idem_forget('execute', 'forgotten')$$);
SELECT * FROM pg_temp.meddle('again', $$WITH f AS MATERIALIZED (SELECT idem_forget('execute', 'again') AS done) SELECT c.outcome FROM f, LATERAL idem_claim('execute', 'again', ttl => CASE WHEN f.done THEN interval '1 h' END) c$$);
DROP FUNCTION regress_rewrite(text);

-- a command that makes the table one that cannot be used is refused as a whole
CREATE FUNCTION regress_never() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RAISE ''fired''; END';
SELECT f.code, f.detail FROM pg_temp.failing($$SELECT * FROM idem_execute('execute', 'ddl', command => 'CREATE TRIGGER t BEFORE UPDATE ON idem_record FOR EACH ROW EXECUTE FUNCTION regress_never()')$$) f;
SELECT outcome FROM idem_lookup('execute', 'ddl');
DROP FUNCTION regress_never();

DELETE FROM idem_record WHERE scope = 'execute';
