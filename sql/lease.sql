--
-- Leases: their length, their end, and what waits for it.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned
-- a clock that stands still makes a wait endless, which shall fail, not hang
SET statement_timeout = '2min';

-- NULL is the setting, 0 is transactional, and what is given is exact
CREATE FUNCTION pg_temp.leased(_lease interval) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	stored interval;
	live interval;
BEGIN
	PERFORM * FROM idem_claim('lease', 'a', lease => _lease);
	SELECT lease, lease_expires_at - claimed_at INTO stored, live FROM idem_record WHERE (scope, key) = ('lease', 'a');
	PERFORM idem_forget('lease', 'a');
	RETURN coalesce(stored::text, 'none') || ', ' || coalesce(live::text, 'none');
END $$;
SELECT pg_temp.leased(NULL);
SELECT pg_temp.leased('0');
SELECT pg_temp.leased('-0 days');
SELECT pg_temp.leased('1 day -24 hours');
SELECT pg_temp.leased('1.5 s');
SELECT pg_temp.leased('1 us');
SELECT pg_temp.leased('1 month 1 day 1 hour');
SET idempotency.lease = '90s';
SELECT pg_temp.leased(NULL);
SELECT pg_temp.leased('0');
SELECT pg_temp.leased('1 min');
RESET idempotency.lease;
SELECT f.code, f.argument, f.message FROM pg_temp.failing('SELECT * FROM idem_claim(''lease'', ''a'', lease => ''-1 us'')') f;
SELECT count(*) FROM idem_record WHERE scope = 'lease';

-- the same length and the same verdict in every time zone, over a change of
-- daylight saving time too
SET timezone = 'Etc/GMT-14';
SELECT pg_temp.leased('1.5 s'), pg_temp.leased('6 months');
SELECT outcome FROM idem_claim('lease', 'zone', lease => '3 hours');
SET timezone = 'Etc/GMT+12';
SELECT pg_temp.leased('1.5 s'), pg_temp.leased('6 months');
SELECT outcome FROM idem_claim('lease', 'zone', lease => '3 hours');
SELECT pg_temp.pass('lease', 'zone', '3 hours');
SELECT outcome FROM idem_claim('lease', 'zone', lease => '3 hours');
SET timezone = 'Europe/Berlin';
SELECT pg_temp.leased('6 months');
SELECT outcome FROM idem_claim('lease', 'zone', lease => '3 hours');
RESET timezone;

-- by default an abandoned claim is unknown, whoever asks and however long
-- they wait: the end of a lease alone never lets the work run again
SELECT outcome FROM idem_claim('lease', 'live', lease => '1 hour');
SELECT outcome FROM idem_claim('lease', 'live', lease => '1 hour');
SELECT token FROM idem_claim('lease', 'b', lease => '200 ms') \gset
SELECT pg_sleep(0.3);
SELECT outcome, state FROM idem_claim('lease', 'b', lease => '1 hour', wait => '1 hour');
SELECT outcome FROM idem_lookup('lease', 'b');

-- with retry the next claim gets it, with a token of its own
SELECT outcome FROM idem_claim('lease', 'live retry', lease => '1 hour', on_abandon => 'retry');
SELECT outcome FROM idem_claim('lease', 'live retry', lease => '1 hour');
SELECT token FROM idem_claim('lease', 'c', lease => '200 ms', on_abandon => 'retry') \gset
SELECT pg_sleep(0.3);
SELECT outcome, attempt, recovered, token <> :'token' AS new_token FROM idem_claim('lease', 'c', lease => '1 hour');
SELECT f.code, f.detail FROM pg_temp.failing(format('SELECT idem_finish(''lease'', ''c'', token => %L)', :'token')) f;

-- a waiter gets what the end of the lease makes of the record
SELECT outcome FROM idem_claim('lease', 'd', lease => '200 ms', on_abandon => 'retry');
SELECT outcome, attempt, recovered FROM idem_claim('lease', 'd', lease => '1 hour', wait => '10 min');
SELECT outcome FROM idem_claim('lease', 'e', lease => '200 ms');
SELECT outcome FROM idem_claim('lease', 'e', lease => '1 hour', wait => '10 min');

-- a wait ends at its bound, and by a cancel
SELECT outcome FROM idem_claim('lease', 'f', lease => '1 hour');
SELECT outcome, clock_timestamp() >= statement_timestamp() + interval '50 ms' AS waited
FROM idem_claim('lease', 'f', lease => '1 hour', wait => '50 ms');
SET idempotency.wait = '50ms';
SELECT outcome, clock_timestamp() >= statement_timestamp() + interval '50 ms' AS waited
FROM idem_claim('lease', 'f', lease => '1 hour');
RESET idempotency.wait;
SET statement_timeout = '50ms';
SELECT outcome FROM idem_claim('lease', 'f', lease => '1 hour', wait => '1 hour');
SET statement_timeout = '2min';

-- decided by the clock of the moment, not by that of the transaction
SELECT outcome FROM idem_claim('lease', 'g', lease => '200 ms', on_abandon => 'retry');
BEGIN;
SELECT 1;
SELECT pg_sleep(0.3);
SELECT outcome, attempt, lease_expires_at > now() + interval '1 hour 200 ms' AS from_then_on
FROM idem_claim('lease', 'g', lease => '1 hour');
ROLLBACK;
BEGIN;
SELECT 1;
SELECT outcome FROM idem_lookup('lease', 'g');
SELECT token FROM idem_claim('lease', 'g', lease => '200 ms', on_abandon => 'retry') \gset
SELECT pg_sleep(0.3);
SELECT idem_extend('lease', 'g', lease => '1 hour') > now() + interval '1 hour 200 ms' AS extended;
COMMIT;

-- a claim in hand is never abandoned by its own transaction
BEGIN;
SELECT outcome FROM idem_claim('lease', 'h', lease => '1 ms', ttl => '1 ms', on_abandon => 'retry');
SELECT pg_sleep(0.01);
SELECT outcome FROM idem_claim('lease', 'h', lease => '1 hour');
SELECT outcome FROM idem_takeover('lease', 'h', force => true);
SELECT outcome FROM idem_lookup('lease', 'h');
SAVEPOINT s;
SELECT f.code FROM pg_temp.failing('SELECT idem_once(''lease'', ''h'')') f;
ROLLBACK TO s;
SELECT deleted FROM idem_sweep();
SELECT idem_finish('lease', 'h', ttl => '1 hour');
COMMIT;
SELECT outcome FROM idem_lookup('lease', 'h');

-- without the forced flush all else is the same
SET idempotency.durable_claims = off;
SELECT outcome FROM idem_claim('lease', 'not flushed', lease => '1 hour');
SELECT outcome, state FROM idem_resolve('lease', 'not flushed', state => 'failed', force => true);
RESET idempotency.durable_claims;

DELETE FROM idem_record WHERE scope = 'lease';
