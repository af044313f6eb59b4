--
-- The operator's calls and views: takeover, resolve, forget, unresolved, health.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- A record in each state, by name.
CREATE FUNCTION pg_temp.prepare_records() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	_key text;
	_token uuid;
BEGIN
	DELETE FROM idem_record;
	FOREACH _key IN ARRAY '{live,lapsed,retry,unknown,released,succeeded,failed,expired,gone,expired unknown}'::text[] LOOP
		SELECT token INTO _token FROM idem_claim('operator', _key, request => '1', lease => '1 hour', ttl => '10 hours',
			on_abandon => CASE WHEN _key IN ('retry', 'gone') THEN 'retry' ELSE 'unknown' END);
		PERFORM idem_checkpoint('operator', _key, token => _token, checkpoint => 'point', checkpoint_data => '[1]');
		IF _key IN ('unknown', 'released', 'succeeded', 'failed') THEN
			PERFORM idem_finish('operator', _key, token => _token, state => _key,
				response_code => CASE WHEN _key IN ('succeeded', 'failed') THEN 200 END);
		END IF;
	END LOOP;
	PERFORM idem_finish('operator', 'expired', token => token, state => 'failed') FROM idem_record WHERE key = 'expired';
	PERFORM pg_temp.pass('operator', k, '90 min') FROM unnest('{lapsed,retry}'::text[]) k;
	PERFORM pg_temp.pass('operator', k, '20 hours') FROM unnest('{expired,gone,expired unknown}'::text[]) k;
END $$;
CREATE FUNCTION pg_temp.each_key() RETURNS TABLE (key text, n bigint) LANGUAGE sql AS $$
	SELECT * FROM unnest('{live,lapsed,retry,unknown,released,succeeded,failed,expired,gone,expired unknown,never seen}'::text[]) WITH ORDINALITY
$$;

-- takeover: no request needed; only what is unknown, released or lapsed; it
-- keeps ttl, policy and checkpoint and is recovered but after a release
SELECT pg_temp.prepare_records();
SELECT k.key, pg_temp.seen(to_jsonb(t)) FROM pg_temp.each_key() k, LATERAL idem_takeover('operator', k.key, lease => '30 min') t ORDER BY k.n;
SELECT k.key, pg_temp.kept('operator', k.key) - '{created_at,fingerprint}'::text[] FROM pg_temp.each_key() k
WHERE k.key IN ('live', 'lapsed', 'retry', 'unknown', 'released', 'expired unknown') ORDER BY k.n;

-- the new attempt enforces the request, and only its token counts
SELECT outcome FROM idem_claim('operator', 'lapsed', request => '2');
SELECT outcome FROM idem_claim('operator', 'lapsed', request => '1');
SELECT outcome, attempt FROM idem_takeover('operator', 'lapsed', lease => '30 min');

-- with force a live one, too; nothing else changes
SELECT pg_temp.prepare_records();
SELECT k.key, pg_temp.seen(to_jsonb(t)) FROM pg_temp.each_key() k, LATERAL idem_takeover('operator', k.key, lease => '30 min', force => true) t ORDER BY k.n;

-- without a lease it is transactional, as a claim; the setting counts
SELECT pg_temp.prepare_records();
BEGIN;
SELECT pg_temp.seen(to_jsonb(t)) FROM idem_takeover('operator', 'unknown') t;
SELECT pg_temp.seen(to_jsonb(t)) FROM idem_takeover('operator', 'unknown') t;
SELECT idem_finish('operator', 'unknown', state => 'failed', response_code => 402);
SELECT pg_temp.seen(to_jsonb(t)) FROM idem_takeover('operator', 'unknown') t;
COMMIT;
SELECT outcome, response_code FROM idem_lookup('operator', 'unknown');
SET idempotency.lease = '10min';
SELECT pg_temp.seen(to_jsonb(t)) FROM idem_takeover('operator', 'lapsed') t;
RESET idempotency.lease;
-- positional
SELECT pg_temp.seen(to_jsonb(t)) FROM idem_takeover('operator', 'live', '', '20 min', '0', true) t;

-- what is taken over may be abandoned, taken over, released and claimed again
SELECT pg_temp.pass('operator', 'live', '30 min');
SELECT outcome, attempt, recovered FROM idem_takeover('operator', 'live', lease => '1 hour');
SELECT idem_finish('operator', 'live', token => token, state => 'released') FROM idem_record WHERE key = 'live';
SELECT outcome, attempt, recovered, checkpoint FROM idem_claim('operator', 'live', request => '1', lease => '1 hour');

-- a takeover waits for a live claim within its bound
SELECT outcome, clock_timestamp() >= statement_timestamp() + interval '30 ms' AS waited
FROM idem_takeover('operator', 'live', lease => '1 hour', wait => '30 ms');

-- resolve: takeover and finish at once
SELECT pg_temp.prepare_records();
SELECT k.key, pg_temp.seen(to_jsonb(r)) FROM pg_temp.each_key() k,
	LATERAL idem_resolve('operator', k.key, state => 'succeeded', response_code => 201, response_body => 'as the provider says', response_headers => '{}') r ORDER BY k.n;
SELECT pg_temp.kept('operator', 'unknown');
SELECT outcome, response_body FROM idem_claim('operator', 'unknown', request => '1');
SELECT f.code, f.detail FROM pg_temp.failing((SELECT format('SELECT idem_finish(''operator'', ''live'', token => %L)', token) FROM idem_record WHERE key = 'live')) f;

-- with force a live one, too, whose owner has then lost it
SELECT pg_temp.prepare_records();
SELECT token FROM idem_record WHERE key = 'live' \gset
SELECT pg_temp.seen(to_jsonb(r)) FROM idem_resolve('operator', 'live', '', 'failed', 402, NULL, NULL, '\xff', '3 hours', true) r;
SELECT f.code, f.detail FROM pg_temp.failing(format('SELECT idem_finish(''operator'', ''live'', token => %L)', :'token')) f;

-- released: the next claim may run
SELECT pg_temp.prepare_records();
SELECT k.key, pg_temp.seen(to_jsonb(r)) FROM pg_temp.each_key() k, LATERAL idem_resolve('operator', k.key, state => 'released') r ORDER BY k.n;
SELECT pg_temp.kept('operator', 'unknown');
SELECT outcome, attempt, recovered, checkpoint FROM idem_claim('operator', 'unknown', request => '1', lease => '1 hour');

-- not the transaction's own claim
BEGIN;
SELECT outcome FROM idem_claim('operator', 'own', lease => '1 hour');
SELECT pg_temp.seen(to_jsonb(r)) FROM idem_resolve('operator', 'own', state => 'failed', force => true) r;
SELECT pg_temp.seen(to_jsonb(r)) FROM idem_takeover('operator', 'own', force => true) r;
ROLLBACK;

-- forget: whatever the state
SELECT pg_temp.prepare_records();
SELECT k.key, idem_forget('operator', k.key) AS first, idem_forget('operator', k.key) AS again FROM pg_temp.each_key() k ORDER BY k.n;
SELECT count(*) FROM idem_record;
SELECT outcome, attempt FROM idem_claim('operator', 'unknown', request => '2', lease => '1 hour');

-- unresolved: exactly what somebody has to look into, oldest first
SELECT pg_temp.prepare_records();
SELECT u.scope, u.key, u.principal, u.state, u.attempt, u.on_abandon, pg_temp.distance(u.claimed_at) AS claimed_at,
	pg_temp.distance(u.lease_expires_at) AS lease_expires_at, u.checkpoint, u.checkpoint_data
FROM idem_unresolved u;
SELECT unresolved FROM idem_sweep();
SELECT unresolved, leased, oldest_unresolved BETWEEN interval '19 hours' AND interval '20 hours' AS oldest_unresolved, oldest_expired IS NULL AS swept FROM idem_health;
SELECT outcome FROM idem_claim('operator', 'lapsed', request => '1');

-- it changes with every step, at once
SELECT r.outcome FROM idem_resolve('operator', 'lapsed', state => 'failed') r;
SELECT key FROM idem_unresolved;
SELECT r.outcome FROM idem_takeover('operator', 'unknown', lease => '1 hour') r;
SELECT key FROM idem_unresolved;
-- a reconciler that finds nothing out does not make it look young
SELECT idem_finish('operator', 'unknown', token => token, state => 'unknown') FROM idem_record WHERE key = 'unknown';
SELECT pg_temp.distance(lease_expires_at) AS lapsed FROM idem_unresolved WHERE key = 'unknown';
SELECT date_trunc('hour', h.oldest_unresolved) >= date_trunc('hour', clock_timestamp() - r.created_at) AS health,
	date_trunc('hour', s.oldest_unresolved) >= date_trunc('hour', clock_timestamp() - r.created_at) AS stats
FROM idem_health h, idem_stats s, idem_record r WHERE r.key = 'unknown' AND s.scope = 'operator';
SELECT r.outcome FROM idem_takeover('operator', 'unknown', lease => '1 hour') r;
BEGIN;
SELECT r.outcome FROM idem_takeover('operator', 'expired unknown') r;
SELECT key FROM idem_unresolved;
ROLLBACK;
SELECT key FROM idem_unresolved;
SELECT idem_forget('operator', 'expired unknown');
SELECT count(*) FROM idem_unresolved;
SELECT pg_temp.pass('operator', 'live', '1 hour');
SELECT key, state FROM idem_unresolved;
SELECT idem_extend('operator', 'live', token => token) IS NOT NULL AS extended FROM idem_record WHERE key = 'live';
SELECT count(*) FROM idem_unresolved;

-- what was finished as unknown stays so: "retry" is taken back, so a takeover that
-- is abandoned in turn does not give it away
SELECT token FROM idem_claim('operator', 'doubt', lease => '1 hour', on_abandon => 'retry') \gset
SELECT idem_finish('operator', 'doubt', token => :'token', state => 'unknown');
SELECT outcome FROM idem_takeover('operator', 'doubt', lease => '1 hour');
SELECT pg_temp.pass('operator', 'doubt', '100 days');
SELECT outcome FROM idem_claim('operator', 'doubt', lease => '1 hour', on_abandon => 'retry');
SELECT outcome, state FROM idem_lookup('operator', 'doubt');
SELECT deleted FROM idem_sweep();
SELECT key, on_abandon FROM idem_unresolved WHERE key = 'doubt';
SELECT outcome, state FROM idem_resolve('operator', 'doubt', state => 'released');
SELECT outcome, attempt, recovered FROM idem_claim('operator', 'doubt', lease => '1 hour', on_abandon => 'retry');
SELECT on_abandon FROM idem_record WHERE key = 'doubt';

-- health: one row, and nulls where there is nothing
SELECT pg_temp.prepare_records();
SELECT unresolved, leased, oldest_unresolved > interval '19 hours' AS oldest_unresolved,
	oldest_expired BETWEEN interval '10 hours' AND interval '11 hours' AS oldest_expired FROM idem_health;
DELETE FROM idem_record;
SELECT unresolved, leased, oldest_unresolved IS NULL, oldest_expired IS NULL FROM idem_health;

-- the views walk the small indexes and not the table
INSERT INTO idem_record (scope, key, principal, state, attempt, token, created_at, claimed_at, expires_at, ttl, on_abandon, recovered, progressed, finished_at)
	SELECT 'operator', n::text, '', 'succeeded', 1, gen_random_uuid(), now(), now(), now() + interval '1 day', '1 day', 'unknown', false, false, now()
	FROM generate_series(1, 3000) n;
ANALYZE idem_record;
CREATE FUNCTION pg_temp.plan(query text) RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
	FOR query IN EXECUTE 'EXPLAIN (COSTS OFF) ' || query LOOP
		RETURN NEXT substring(query FROM '(?:Seq Scan on|Scan using|Bitmap Index Scan on) (\w+)');
	END LOOP;
END $$;
SELECT DISTINCT p FROM pg_temp.plan('SELECT * FROM idem_unresolved') p WHERE p IS NOT NULL ORDER BY 1;
SELECT DISTINCT p FROM pg_temp.plan('SELECT * FROM idem_health') p WHERE p IS NOT NULL ORDER BY 1;

DELETE FROM idem_record;
