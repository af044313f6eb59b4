--
-- A claim that is safe to repeat: claim_token.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

\set one '''00000000-0000-4000-8000-000000000001'''
\set two '''00000000-0000-4000-8000-000000000002'''

-- The answer was lost: the same token gets the same attempt again, with the
-- lease renewed and nothing else.
SELECT pg_temp.seen(to_jsonb(c)) AS answer, token FROM idem_claim('token', 'a', request => '1', lease => '30 min', ttl => '2 hours', claim_token => :one) c;
SELECT pg_temp.pass('token', 'a', '20 min');
SELECT pg_temp.seen(to_jsonb(c)) AS answer, token FROM idem_claim('token', 'a', request => '1', lease => '40 min', ttl => '9 hours', on_abandon => 'retry', claim_token => :one) c;
SELECT pg_temp.kept('token', 'a');

-- no other token, no missing token, no other request
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('token', 'a', request => '1', lease => '1 hour', claim_token => :two) c;
SELECT outcome FROM idem_claim('token', 'a', request => '1', lease => '1 hour');
SELECT outcome FROM idem_claim('token', 'a', request => '2', lease => '1 hour', claim_token => :one);

-- the token is the record's token
SELECT idem_finish('token', 'a', token => :one, response_code => 200);
-- settled: decided as for anyone else
SELECT outcome, token FROM idem_claim('token', 'a', request => '1', lease => '1 hour', claim_token => :one);

-- in the transaction of the claim the repeat wins over in_progress
BEGIN;
SELECT outcome, attempt FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one);
SELECT outcome, attempt, token FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one);
SELECT outcome FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :two);
SELECT outcome FROM idem_claim('token', 'b', lease => '1 hour');
COMMIT;

-- a repeat may be repeated
SELECT outcome, attempt FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one);
SELECT outcome, attempt FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one);

-- something was done under the claim: never claimed again by it
SELECT idem_extend('token', 'b', token => :one) IS NOT NULL AS extended;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one) c;
SELECT outcome FROM idem_claim('token', 'c', lease => '1 hour', claim_token => :one);
SELECT idem_checkpoint('token', 'c', token => :one, checkpoint => 'charging') IS NOT NULL AS recorded;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('token', 'c', lease => '1 hour', claim_token => :one) c;

-- the lease is over, unknown: unknown
SELECT pg_temp.pass('token', 'b', '1 hour');
SELECT outcome, token FROM idem_claim('token', 'b', lease => '1 hour', claim_token => :one);
SELECT outcome FROM idem_claim('token', 'd', lease => '1 hour', claim_token => :one);
SELECT pg_temp.pass('token', 'd', '1 hour');
SELECT outcome, token FROM idem_claim('token', 'd', lease => '1 hour', claim_token => :one);
SELECT idem_finish('token', 'd', token => :one, state => 'unknown');
SELECT outcome, token FROM idem_claim('token', 'd', lease => '1 hour', claim_token => :one);

-- a new attempt needs a new token: after a release, an abandonment with
-- retry, and the end of the record
CREATE FUNCTION pg_temp.reuse(_key text) RETURNS TABLE (code text, argument text, message text, unchanged boolean)
LANGUAGE plpgsql AS $$
DECLARE
	before text := (SELECT idem_record::text FROM idem_record WHERE (scope, key) = ('token', _key));
BEGIN
	SELECT f.code, f.argument, f.message INTO code, argument, message
	FROM pg_temp.failing(format('SELECT * FROM idem_claim(''token'', %L, lease => ''1 hour'', claim_token => ''00000000-0000-4000-8000-000000000001'')', _key)) f;
	unchanged := before = (SELECT idem_record::text FROM idem_record WHERE (scope, key) = ('token', _key));
	RETURN NEXT;
END $$;
SELECT idem_finish('token', 'd', token => :one, state => 'released');
SELECT * FROM pg_temp.reuse('d');
SELECT outcome, attempt, token FROM idem_claim('token', 'd', lease => '1 hour', claim_token => :two);
SELECT outcome FROM idem_claim('token', 'e', lease => '1 hour', on_abandon => 'retry', claim_token => :one);
SELECT pg_temp.pass('token', 'e', '1 hour');
SELECT * FROM pg_temp.reuse('e');
SELECT pg_temp.pass('token', 'e', '1 day');
SELECT * FROM pg_temp.reuse('e');
SELECT outcome, attempt, recovered FROM idem_claim('token', 'e', lease => '1 hour', claim_token => :two);
SELECT outcome FROM idem_claim('token', 'f', lease => '1 hour', claim_token => :one);
SELECT idem_finish('token', 'f', token => :one);
SELECT pg_temp.pass('token', 'f', '1 day');
SELECT * FROM pg_temp.reuse('f');

-- a token that was taken over from is nobody's
SELECT outcome FROM idem_claim('token', 'g', lease => '1 hour', claim_token => :one);
SELECT outcome, attempt FROM idem_takeover('token', 'g', lease => '1 hour', force => true);
SELECT outcome, token FROM idem_claim('token', 'g', lease => '1 hour', claim_token => :one);
SELECT f.code, f.detail FROM pg_temp.failing('SELECT idem_finish(''token'', ''g'', token => ''00000000-0000-4000-8000-000000000001'')') f;

-- the checkpoint of an earlier attempt comes with every repeat
SELECT outcome FROM idem_claim('token', 'h', lease => '1 hour', on_abandon => 'retry');
SELECT idem_checkpoint('token', 'h', token => token, checkpoint => 'half') IS NOT NULL AS recorded FROM idem_record WHERE (scope, key) = ('token', 'h');
SELECT pg_temp.pass('token', 'h', '1 hour');
SELECT outcome, attempt, recovered, checkpoint FROM idem_claim('token', 'h', lease => '1 hour', claim_token => :one);
SELECT outcome, attempt, recovered, checkpoint FROM idem_claim('token', 'h', lease => '1 hour', claim_token => :one);

-- leased claims only
SELECT f.* FROM pg_temp.failing('SELECT * FROM idem_claim(''token'', ''i'', claim_token => ''00000000-0000-4000-8000-000000000001'')') f;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_claim(''token'', ''i'', lease => ''0'', claim_token => ''00000000-0000-4000-8000-000000000001'')') f;
SET idempotency.lease = '1h';
SELECT outcome FROM idem_claim('token', 'i', claim_token => :one);
RESET idempotency.lease;

-- tokens that are drawn are random: version 4 or not, no two are the same
SELECT count(DISTINCT c.token) FROM generate_series(1, 500) n, LATERAL idem_claim('token', 'n' || n, lease => '1 hour') c;

-- a token outlives neither the record nor a sweep of it
SELECT token FROM idem_claim('token', 'j', lease => '1 hour') \gset
SELECT idem_forget('token', 'j');
SELECT outcome, attempt, token <> :'token' AS new_token FROM idem_claim('token', 'j', lease => '1 hour');
SELECT f.code FROM pg_temp.failing(format('SELECT idem_finish(''token'', ''j'', token => %L)', :'token')) f;
SELECT token FROM idem_claim('token', 'k', lease => '1 ms', ttl => '1 ms', on_abandon => 'retry') \gset
SELECT pg_sleep(0.01);
SELECT deleted > 0 AS deleted FROM idem_sweep(1000000);
SELECT f.code FROM pg_temp.failing(format('SELECT idem_finish(''token'', ''k'', token => %L)', :'token')) f;
SELECT outcome, attempt, token <> :'token' AS new_token FROM idem_claim('token', 'k', lease => '1 hour');
SELECT f.code FROM pg_temp.failing(format('SELECT idem_finish(''token'', ''k'', token => %L)', :'token')) f;
SELECT f.code FROM pg_temp.failing(format('SELECT idem_extend(''token'', ''k'', token => %L)', :'token')) f;

DELETE FROM idem_record WHERE scope = 'token';
