--
-- Sweeping: what expired goes, and nothing else.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

DELETE FROM idem_record;

-- A record in each state, past its end; the others are not.
CREATE FUNCTION pg_temp.prepare_records() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	_key text;
	_token uuid;
BEGIN
	DELETE FROM idem_record;
	FOREACH _key IN ARRAY '{lapsed,retry,live,live retry,unknown,released,succeeded,failed}'::text[] LOOP
		FOR life IN 1 .. 2 LOOP
			SELECT token INTO _token FROM idem_claim('sweep', _key || ' ' || life, lease => '40 hours', ttl => '10 hours',
				on_abandon => CASE WHEN _key ~ 'retry' THEN 'retry' ELSE 'unknown' END);
			IF _key IN ('unknown', 'released', 'succeeded', 'failed') THEN
				PERFORM idem_finish('sweep', _key || ' ' || life, token => _token, state => _key);
			ELSIF _key IN ('lapsed', 'retry') THEN
				UPDATE idem_record SET lease_expires_at = now() WHERE key = _key || ' ' || life;
			END IF;
		END LOOP;
		PERFORM pg_temp.pass('sweep', _key || ' 1', '11 hours');
	END LOOP;
END $$;
SELECT pg_temp.prepare_records();
SELECT * FROM idem_sweep();
SELECT key, state FROM idem_record ORDER BY key;
SELECT * FROM idem_sweep();

-- of a claim that is to be retried nothing goes before its lease has ended
SELECT pg_temp.pass('sweep', 'live retry 1', '40 hours');
SELECT * FROM idem_sweep();
-- and of what is unknown nothing ever
SELECT count(pg_temp.pass('sweep', key, '100 years')) FROM idem_record WHERE key ~ '^(lapsed|unknown|live) [12]';
SELECT * FROM idem_sweep();
SELECT key FROM idem_record ORDER BY key;

-- up to so many, oldest first; more says whether there is more to delete
DELETE FROM idem_record;
CREATE FUNCTION pg_temp.expired(n int) RETURNS void LANGUAGE sql AS $$
	INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at, expires_at, ttl, on_abandon, recovered, progressed, finished_at)
	SELECT 'sweep', to_char(i, 'FM0000'), '', 'succeeded', 1, gen_random_uuid(), now(), now(),
		now() - interval '1 hour' - i * interval '1 s', '1 day', 'unknown', false, false, now()
	FROM generate_series(1, n) i
$$;
SELECT pg_temp.expired(5);
SELECT * FROM idem_sweep(2);
SELECT string_agg(key, ' ' ORDER BY key) FROM idem_record;
SELECT * FROM idem_sweep(1);
SELECT * FROM idem_sweep(max_rows => 2);
SELECT * FROM idem_sweep(2);
SELECT pg_temp.expired(1001);
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();

-- in a transaction that is rolled back nothing went
SELECT pg_temp.expired(3);
BEGIN;
SELECT * FROM idem_sweep();
SELECT * FROM idem_sweep();
ROLLBACK;
SELECT count(*) FROM idem_record;

-- what expires in the middle of a REPEATABLE READ transaction goes in it
BEGIN ISOLATION LEVEL REPEATABLE READ;
SELECT * FROM idem_sweep(1);
SELECT * FROM idem_sweep(1);
COMMIT;
SELECT string_agg(key, ' ') FROM idem_record;

-- swept or not, an expired key can be claimed and its record begins anew
SELECT outcome, attempt FROM idem_claim('sweep', '0001', lease => '1 hour');
SELECT * FROM idem_sweep();
SELECT outcome FROM idem_lookup('sweep', '0001');
SELECT idem_forget('sweep', '0001');

-- all of it, batch by batch, each committed
SELECT pg_temp.expired(25);
CALL idem_sweep_all(10);
SELECT count(*) FROM idem_record;
SELECT pg_temp.expired(7);
CALL idem_sweep_all(batch => 3, pause => '1 ms');
SELECT count(*) FROM idem_record;
CALL idem_sweep_all();
SELECT pg_temp.expired(3);
CALL idem_sweep_all(1, '0');
SELECT count(*) FROM idem_record;

-- each batch is in a transaction of its own
CREATE TEMP TABLE commits (before xid8, after xid8);
SELECT pg_temp.expired(7);
DO $$
DECLARE
	before xid8;
BEGIN
	before := pg_current_xact_id();
	COMMIT;
	CALL idem_sweep_all(2);
	INSERT INTO commits VALUES (before, pg_current_xact_id());
END $$;
SELECT after::text::bigint - before::text::bigint >= 5 AS four_batches FROM commits;
SELECT count(*) FROM idem_record;

-- so what follows in the same statement does not bring them back
\set SHOW_CONTEXT never
SELECT pg_temp.expired(9);
DO $$
BEGIN
	CALL idem_sweep_all(4);
	PERFORM 1 / 0;
EXCEPTION WHEN division_by_zero THEN
	NULL;
END $$;
\echo :LAST_ERROR_SQLSTATE
DO $$
BEGIN
	CALL idem_sweep_all(4);
	PERFORM 1 / 0;
END $$;
\echo :LAST_ERROR_SQLSTATE
SELECT count(*) FROM idem_record;

-- a pause can be interrupted
SELECT pg_temp.expired(2);
SET statement_timeout = '500ms';
CALL idem_sweep_all(1, '1 hour');
RESET statement_timeout;
CALL idem_sweep_all();

-- not inside a transaction, which it could not commit
BEGIN;
SAVEPOINT s;
CALL idem_sweep_all();
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT deleted FROM idem_sweep();
COMMIT;

-- time zones change nothing
SELECT pg_temp.expired(1);
UPDATE idem_record SET expires_at = clock_timestamp() + interval '1 hour';
SET timezone = 'Etc/GMT-14';
SELECT deleted FROM idem_sweep();
SET timezone = 'Etc/GMT+12';
SELECT deleted FROM idem_sweep();
RESET timezone;

-- the cost is that of what expired: a hundred, of five thousand
TRUNCATE idem_record;
SELECT pg_temp.expired(100);
INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at, expires_at, ttl, on_abandon, recovered, progressed, finished_at)
	SELECT 'sweep', 'live ' || i, '', 'succeeded', 1, gen_random_uuid(), now(), now(), now() + interval '1 day', '1 day', 'unknown', false, false, now()
	FROM generate_series(1, 5000) i;
BEGIN;
SELECT pg_stat_get_xact_tuples_returned('idem_record_sweep_idx'::regclass) AS before,
	pg_stat_get_xact_numscans('idem_record'::regclass) AS scans_before \gset
SELECT deleted, more FROM idem_sweep();
SELECT pg_stat_get_xact_tuples_returned('idem_record_sweep_idx'::regclass) - :before < 150 AS reads_what_expired,
	pg_stat_get_xact_numscans('idem_record'::regclass) - :scans_before AS table_scans;
COMMIT;
DELETE FROM idem_record;
