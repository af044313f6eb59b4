--
-- The same key with another request.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- what is the same request: its canonical form, or a fingerprint as given
BEGIN;
SELECT outcome FROM idem_claim('mismatch', 'a', request => '{"b": 1.0, "a": "x"}');
SELECT idem_finish('mismatch', 'a', response_body => 'secret');
COMMIT;
SELECT outcome FROM idem_claim('mismatch', 'a', request => '{"a":"\u0078","b":1}');
SELECT outcome FROM idem_claim('mismatch', 'a', fingerprint => idem_fingerprint('{"a": "x", "b": 1}'));
SELECT outcome FROM idem_claim('mismatch', 'a', request => '{"a": "x", "b": 2}');
SELECT outcome FROM idem_claim('mismatch', 'a', fingerprint => sha256('other'));

-- NULL matches only NULL
SELECT outcome FROM idem_claim('mismatch', 'a');
SELECT outcome FROM idem_claim('mismatch', 'b', lease => '1 hour');
SELECT outcome FROM idem_claim('mismatch', 'b', request => '1', lease => '1 hour');
SELECT outcome FROM idem_claim('mismatch', 'b', request => 'null', lease => '1 hour');
SELECT outcome FROM idem_claim('mismatch', 'b', lease => '1 hour');

-- a mismatch comes before every state but absence, tells the state and
-- nothing else, at once, and changes nothing
CREATE FUNCTION pg_temp.other_request(_key text) RETURNS TABLE (answer jsonb, unchanged boolean)
LANGUAGE plpgsql AS $$
DECLARE
	before text := (SELECT idem_record::text FROM idem_record WHERE (scope, key) = ('mismatch', _key));
BEGIN
	answer := pg_temp.seen(to_jsonb(c)) FROM idem_claim('mismatch', _key, request => '2', lease => '1 hour',
		wait => '1 hour', on_abandon => 'retry', claim_token => '00000000-0000-4000-8000-000000000002') c;
	unchanged := before = (SELECT idem_record::text FROM idem_record WHERE (scope, key) = ('mismatch', _key));
	RETURN NEXT;
END $$;
SET statement_timeout = '60s';
SELECT token FROM idem_claim('mismatch', 'c', request => '1', lease => '1 hour') \gset
SELECT * FROM pg_temp.other_request('c');
SELECT pg_temp.pass('mismatch', 'c', '2 hours');
SELECT * FROM pg_temp.other_request('c');
SELECT idem_checkpoint('mismatch', 'c', token => :'token', checkpoint => 'secret', on_abandon => 'retry') IS NOT NULL AS recorded;
SELECT pg_temp.pass('mismatch', 'c', '2 hours');
SELECT * FROM pg_temp.other_request('c');
SELECT idem_finish('mismatch', 'c', token => :'token', state => 'unknown');
SELECT * FROM pg_temp.other_request('c');
SELECT idem_finish('mismatch', 'c', token => :'token', state => 'failed', response_code => 1, response_body => 'secret', response_headers => '"secret"');
SELECT * FROM pg_temp.other_request('c');
SELECT outcome FROM idem_claim('mismatch', 'd', request => '1', lease => '1 hour');
SELECT idem_finish('mismatch', 'd', token => token, state => 'released') FROM idem_record WHERE (scope, key) = ('mismatch', 'd');
SELECT * FROM pg_temp.other_request('d');

-- also with the claim's own token
SELECT outcome FROM idem_claim('mismatch', 'e', request => '1', lease => '1 hour', claim_token => '00000000-0000-4000-8000-000000000002');
SELECT * FROM pg_temp.other_request('e');

-- once expired, another request is as good as any
SELECT pg_temp.pass('mismatch', 'c', '1 day');
SELECT * FROM pg_temp.other_request('c');

DELETE FROM idem_record WHERE scope = 'mismatch';
