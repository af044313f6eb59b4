--
-- No transaction ends with an unfinished transactional claim (ID002).
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- COMMIT is refused, and nothing stays
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'a', 'me');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('savepoints', 'a', 'me');

-- so is PREPARE TRANSACTION, whether or not the server allows any
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'a');
PREPARE TRANSACTION 'savepoints';
\echo :LAST_ERROR_SQLSTATE
ROLLBACK;
SELECT outcome FROM idem_lookup('savepoints', 'a');

-- so is the statement that claims on its own
SELECT outcome FROM idem_claim('savepoints', 'a');
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('savepoints', 'a');

-- COMMIT AND CHAIN, and the next transaction starts clean
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'a');
COMMIT AND CHAIN;
ROLLBACK;
BEGIN;
COMMIT;
\echo :LAST_ERROR_SQLSTATE

-- one unfinished among finished ones: the first is named
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'one');
SELECT outcome FROM idem_claim('savepoints', 'two');
SELECT outcome FROM idem_claim('savepoints', 'three');
SELECT idem_finish('savepoints', 'one');
SELECT idem_finish('savepoints', 'three');
COMMIT;
SELECT count(*) FROM idem_record WHERE scope = 'savepoints';

-- a takeover without a lease is a transactional claim as well
SELECT token FROM idem_claim('savepoints', 'taken', lease => '1 hour') \gset
BEGIN;
SELECT outcome FROM idem_takeover('savepoints', 'taken', force => true);
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome, attempt FROM idem_lookup('savepoints', 'taken');
SELECT idem_finish('savepoints', 'taken', token => :'token', state => 'released');
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'taken');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome, attempt FROM idem_lookup('savepoints', 'taken');

-- a finish in a savepoint that is rolled back did not happen
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'b');
SAVEPOINT s;
SELECT idem_finish('savepoints', 'b');
ROLLBACK TO s;
COMMIT;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('savepoints', 'b');

-- also where it was passed on to an outer savepoint first
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idem_claim('savepoints', 'b');
RELEASE s;
SAVEPOINT s1;
SAVEPOINT s2;
SELECT idem_finish('savepoints', 'b');
RELEASE s2;
ROLLBACK TO s1;
COMMIT;
\echo :LAST_ERROR_SQLSTATE

-- and where it was finished once more, and that was rolled back too
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'b');
SAVEPOINT s;
SELECT idem_finish('savepoints', 'b', state => 'unknown');
SELECT idem_finish('savepoints', 'b');
ROLLBACK TO s;
SAVEPOINT s;
SELECT idem_finish('savepoints', 'b', state => 'failed');
ROLLBACK TO s;
COMMIT;
\echo :LAST_ERROR_SQLSTATE

-- the finish that stands counts
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'c1');
SAVEPOINT s;
SELECT idem_finish('savepoints', 'c1');
ROLLBACK TO s;
SELECT idem_finish('savepoints', 'c1', response_body => 'second');
COMMIT;
SELECT outcome, response_body FROM idem_lookup('savepoints', 'c1');

-- an unknown that was settled in a savepoint that is rolled back stays unknown
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'c2');
SELECT idem_finish('savepoints', 'c2', state => 'unknown');
SAVEPOINT s;
SELECT idem_finish('savepoints', 'c2');
ROLLBACK TO s;
COMMIT;
SELECT outcome, state FROM idem_lookup('savepoints', 'c2');

-- claimed in one savepoint, finished in another
BEGIN;
SAVEPOINT s1;
SELECT outcome FROM idem_claim('savepoints', 'd1');
RELEASE s1;
SAVEPOINT s2;
SELECT idem_finish('savepoints', 'd1');
RELEASE s2;
COMMIT;
BEGIN;
SAVEPOINT s1;
SELECT outcome FROM idem_claim('savepoints', 'd2');
SAVEPOINT s2;
SAVEPOINT s3;
SELECT idem_finish('savepoints', 'd2');
RELEASE s1;
COMMIT;
BEGIN;
SAVEPOINT s1;
SAVEPOINT s2;
SELECT outcome FROM idem_claim('savepoints', 'd3');
RELEASE s2;
SELECT idem_finish('savepoints', 'd3');
RELEASE s1;
COMMIT;
SELECT key, state FROM idem_record WHERE scope = 'savepoints' AND key ~ '^d' ORDER BY key;

-- claims that vanished with their savepoint are not missed
BEGIN;
SAVEPOINT s;
SELECT outcome FROM idem_claim('savepoints', 'e');
ROLLBACK TO s;
COMMIT;
BEGIN;
SAVEPOINT s1;
SAVEPOINT s2;
SELECT outcome FROM idem_claim('savepoints', 'e');
SELECT idem_finish('savepoints', 'e');
SELECT outcome FROM idem_claim('savepoints', 'e2');
RELEASE s2;
ROLLBACK TO s1;
SELECT outcome FROM idem_claim('savepoints', 'e');
SELECT idem_finish('savepoints', 'e', response_body => 'after');
COMMIT;
SELECT key, response_body FROM idem_record WHERE scope = 'savepoints' AND key ~ '^e' ORDER BY key;

-- a claim in a savepoint that is rolled back can be made again, and its old
-- token is worth nothing
BEGIN;
SAVEPOINT s;
SELECT token FROM idem_claim('savepoints', 'f') \gset
ROLLBACK TO s;
SELECT outcome, token <> :'token' AS new_token FROM idem_claim('savepoints', 'f');
SELECT f.code FROM pg_temp.failing(format('SELECT idem_finish(''savepoints'', ''f'', token => %L)', :'token')) f;
SELECT idem_finish('savepoints', 'f');
COMMIT;

-- never by mistake: released, unknown, replayed, refused, leased
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'g1');
SELECT idem_finish('savepoints', 'g1', state => 'released');
SELECT outcome FROM idem_claim('savepoints', 'g2');
SELECT idem_finish('savepoints', 'g2', state => 'unknown');
SELECT outcome FROM idem_claim('savepoints', 'f');
SELECT outcome FROM idem_claim('savepoints', 'f', request => '1');
SELECT outcome FROM idem_claim('savepoints', 'g3', lease => '1 hour');
COMMIT;
SELECT key, state FROM idem_record WHERE scope = 'savepoints' AND key ~ '^g' ORDER BY key;

-- never by mistake: the record is gone
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'h');
SELECT idem_forget('savepoints', 'h');
COMMIT;
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'h');
DELETE FROM idem_record WHERE (scope, key) = ('savepoints', 'h');
COMMIT;
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'h');
DELETE FROM idem_record WHERE (scope, key) = ('savepoints', 'h');
SELECT outcome FROM idem_claim('savepoints', 'h', lease => '1 hour');
COMMIT;
SELECT outcome FROM idem_lookup('savepoints', 'h');

-- but it is not gone if its removal is rolled back
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'i');
SAVEPOINT s;
SELECT idem_forget('savepoints', 'i');
ROLLBACK TO s;
COMMIT;
\echo :LAST_ERROR_SQLSTATE
-- nor if it was claimed once more
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'i');
SELECT idem_forget('savepoints', 'i');
SELECT outcome FROM idem_claim('savepoints', 'i');
COMMIT;
\echo :LAST_ERROR_SQLSTATE

-- emptied or gone with the whole table
BEGIN;
CREATE TEMP TABLE kept AS SELECT scope, key, principal, state FROM idem_record;
SELECT outcome FROM idem_claim('savepoints', 'j');
TRUNCATE idem_record;
COMMIT;
SELECT count(*) FROM idem_record;
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'j');
DROP EXTENSION idempotency;
CREATE EXTENSION idempotency;
COMMIT;
SELECT outcome FROM idem_lookup('savepoints', 'j');

-- exception blocks of PL/pgSQL are savepoints
CREATE TEMP TABLE orders (n int);
CREATE FUNCTION pg_temp.attempt(_key text, fail boolean) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	got text;
BEGIN
	BEGIN
		SELECT outcome INTO got FROM idem_claim('savepoints', _key);
		INSERT INTO orders VALUES (1 / (CASE WHEN fail THEN 0 ELSE 1 END));
		PERFORM idem_finish('savepoints', _key, response_body => 'ordered');
	EXCEPTION WHEN division_by_zero THEN
		RETURN got || ', rolled back';
	END;
	RETURN got;
END $$;
SELECT pg_temp.attempt('k', true);
SELECT outcome FROM idem_lookup('savepoints', 'k');
SELECT pg_temp.attempt('k', false);
SELECT pg_temp.attempt('l', true), pg_temp.attempt('l', false), pg_temp.attempt('m', true);
SELECT key, response_body FROM idem_record WHERE scope = 'savepoints' AND key IN ('k', 'l', 'm') ORDER BY key;

-- a refusal is stored after the work was rolled back
CREATE FUNCTION pg_temp.refused(_key text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM idem_claim('savepoints', _key);
	BEGIN
		INSERT INTO orders VALUES (2);
		PERFORM idem_finish('savepoints', _key, response_body => 'ordered');
		RAISE EXCEPTION 'out of stock';
	EXCEPTION WHEN raise_exception THEN
		PERFORM idem_finish('savepoints', _key, state => 'failed', response_body => 'out of stock');
	END;
	RETURN (SELECT state || ': ' || response_body FROM idem_lookup('savepoints', _key));
END $$;
SELECT pg_temp.refused('n');
SELECT state, response_body FROM idem_claim('savepoints', 'n');
SELECT n, count(*) FROM orders GROUP BY n ORDER BY n;

-- a swallowed error of finish leaves the claim unfinished
DO $$
BEGIN
	PERFORM * FROM idem_claim('savepoints', 'o');
	BEGIN
		PERFORM idem_finish('savepoints', 'o', state => 'nonsense');
	EXCEPTION WHEN invalid_parameter_value THEN
		NULL;
	END;
END $$;
\echo :LAST_ERROR_SQLSTATE
SELECT outcome FROM idem_lookup('savepoints', 'o');

-- a procedure that commits is refused at its commit
\set SHOW_CONTEXT never
DO $$
BEGIN
	PERFORM * FROM idem_claim('savepoints', 'p');
	PERFORM idem_finish('savepoints', 'p');
	COMMIT;
	PERFORM * FROM idem_claim('savepoints', 'q');
	COMMIT;
END $$;
\echo :LAST_ERROR_SQLSTATE
SELECT key, state FROM idem_record WHERE scope = 'savepoints' AND key IN ('p', 'q');

-- claims that are made while the transaction commits
CREATE TABLE regress_deferred (key text, finish boolean);
CREATE FUNCTION regress_claim() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM idem_claim('savepoints', NEW.key);
	IF NEW.finish THEN
		PERFORM idem_finish('savepoints', NEW.key);
	END IF;
	RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER regress_claim AFTER INSERT ON regress_deferred
	DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION regress_claim();
INSERT INTO regress_deferred VALUES ('r', true);
INSERT INTO regress_deferred VALUES ('s', false);
\echo :LAST_ERROR_SQLSTATE
SELECT key FROM regress_deferred;
SELECT key, state FROM idem_record WHERE scope = 'savepoints' AND key IN ('r', 's');
DROP TABLE regress_deferred;
DROP FUNCTION regress_claim;

-- a cursor over claims, closed by the commit
BEGIN;
DECLARE c CURSOR FOR SELECT outcome FROM idem_claim('savepoints', 't');
COMMIT;
BEGIN;
DECLARE c CURSOR WITH HOLD FOR SELECT outcome FROM idem_claim('savepoints', 't');
COMMIT;
\echo :LAST_ERROR_SQLSTATE
CLOSE ALL;
SELECT outcome FROM idem_lookup('savepoints', 't');

-- many claims, with and without savepoints between claim and finish
DO $$
BEGIN
	FOR n IN 1 .. 300 LOOP
		PERFORM * FROM idem_claim('savepoints', 'many ' || n);
		BEGIN
			PERFORM idem_finish('savepoints', 'many ' || n);
			IF n % 3 = 0 THEN
				RAISE EXCEPTION 'undo';
			END IF;
		EXCEPTION WHEN raise_exception THEN
			IF n <> 300 THEN
				PERFORM idem_finish('savepoints', 'many ' || n);
			END IF;
		END;
	END LOOP;
	PERFORM idem_finish('savepoints', 'many 300', state => 'failed');
END $$;
SELECT state, count(*) FROM idem_record WHERE key ~ '^many' GROUP BY state ORDER BY state;

-- a claim that was forgotten does not need its table any more
BEGIN;
SELECT outcome FROM idem_claim('savepoints', 'forgotten');
SELECT idem_forget('savepoints', 'forgotten');
ALTER TABLE idem_record RENAME COLUMN progressed TO renamed;
COMMIT;
ALTER TABLE idem_record RENAME COLUMN renamed TO progressed;

-- an identity that is stored out of line, and an unfinished claim of it
ALTER TABLE idem_record SET (toast_tuple_target = 128);
CREATE FUNCTION pg_temp.long(seed text, n int) RETURNS text LANGUAGE sql AS $$
	SELECT left(string_agg(md5(i || seed), ''), n) FROM generate_series(1, n / 32 + 1) i
$$;
SELECT pg_temp.long('s', 255) AS s, pg_temp.long('k', 255) AS k, pg_temp.long('p', 255) AS p \gset
SELECT token FROM idem_claim(:'s', :'k', :'p', fingerprint => sha256('x'), lease => '1 hour') \gset
SELECT idem_checkpoint(:'s', :'k', :'p', :'token', pg_temp.long('c', 5000)) IS NOT NULL AS recorded;
SELECT idem_finish(:'s', :'k', :'p', :'token', state => 'released');
BEGIN;
SELECT outcome, attempt FROM idem_claim(:'s', :'k', :'p', fingerprint => sha256('x'));
COMMIT;
\echo :LAST_ERROR_SQLSTATE
ALTER TABLE idem_record RESET (toast_tuple_target);
SELECT idem_forget(:'s', :'k', :'p');

DELETE FROM idem_record WHERE scope = 'savepoints';
