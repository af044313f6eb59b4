--
-- The owner's calls on a leased claim: extend, checkpoint, assert.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- Each of the calls, for a key and a token.
CREATE FUNCTION pg_temp.each_call(_key text, _token uuid) RETURNS TABLE (call text, code text, argument text, detail text)
LANGUAGE plpgsql AS $$
BEGIN
	RETURN QUERY
	SELECT v.call, f.code, f.argument, coalesce(nullif(f.detail, ''), f.message)
	FROM (VALUES (1, 'extend', ''), (2, 'checkpoint', ', checkpoint => ''point'''), (3, 'assert', ''), (4, 'finish', ''))
			AS v(n, call, more),
		LATERAL pg_temp.failing(format('SELECT idem_%s(''owner'', %L, token => %L%s)', v.call, _key, _token, v.more)) f
	ORDER BY v.n;
END $$;

-- extend: the length last given, or the one given now, from now on
SELECT token FROM idem_claim('owner', 'a', lease => '30 min', ttl => '10 hours') \gset
SELECT pg_temp.pass('owner', 'a', '20 min');
SELECT pg_temp.distance(idem_extend('owner', 'a', token => :'token'));
SELECT pg_temp.distance(idem_extend('owner', 'a', token => :'token', lease => '2 hours'));
SELECT pg_temp.pass('owner', 'a', '1 hour');
SELECT pg_temp.distance(idem_extend('owner', 'a', token => :'token'));
SELECT pg_temp.kept('owner', 'a');
-- shorter, too
SELECT pg_temp.distance(idem_extend('owner', 'a', '', :'token', '10 min'));

-- checkpoint: the recovery point and its data, replaced as a whole; the lease
-- is renewed; the policy changes only if given
SELECT pg_temp.pass('owner', 'a', '9 min');
SELECT pg_temp.distance(idem_checkpoint('owner', 'a', token => :'token', checkpoint => 'one', checkpoint_data => '{"ref": 1}'));
SELECT pg_temp.kept('owner', 'a');
SELECT pg_temp.distance(idem_checkpoint('owner', 'a', '', :'token', 'two', NULL, 'retry', '40 min'));
SELECT pg_temp.kept('owner', 'a');
SELECT pg_temp.distance(idem_checkpoint('owner', 'a', token => :'token', checkpoint => '', on_abandon => 'unknown'));
SELECT checkpoint = '' AS empty, checkpoint_data, on_abandon FROM idem_record WHERE (scope, key) = ('owner', 'a');

-- assert only locks, and returns nothing
SELECT ctid::text AS before FROM idem_record WHERE (scope, key) = ('owner', 'a') \gset
SELECT idem_assert('owner', 'a', '', :'token');
SELECT ctid::text = :'before' AS unchanged FROM idem_record WHERE (scope, key) = ('owner', 'a');

-- a lapsed lease does not end ownership
SELECT pg_temp.pass('owner', 'a', '2 hours');
SELECT outcome FROM idem_lookup('owner', 'a');
SELECT * FROM pg_temp.each_call('absent', :'token');
BEGIN;
SELECT idem_assert('owner', 'a', token => :'token');
SELECT pg_temp.distance(idem_extend('owner', 'a', token => :'token'));
SELECT outcome FROM idem_lookup('owner', 'a');
ROLLBACK;
BEGIN;
SELECT pg_temp.distance(idem_checkpoint('owner', 'a', token => :'token', checkpoint => 'late'));
SELECT idem_finish('owner', 'a', token => :'token');
ROLLBACK;

-- not even past the end of the record, until somebody acts
SELECT token FROM idem_claim('owner', 'b', lease => '30 min', on_abandon => 'retry') \gset
SELECT pg_temp.pass('owner', 'b', '100 days');
SELECT outcome FROM idem_lookup('owner', 'b');
SELECT * FROM pg_temp.each_call('b', :'token');
SELECT outcome FROM idem_claim('owner', 'b', lease => '1 hour');

-- a zombie is refused by each of the calls, and what the replacement did stands
SELECT token FROM idem_claim('owner', 'c', lease => '30 min') \gset
SELECT pg_temp.pass('owner', 'c', '30 min');
SELECT outcome, attempt FROM idem_takeover('owner', 'c', lease => '1 hour');
SELECT * FROM pg_temp.each_call('c', :'token');
SELECT idem_finish('owner', 'c', token => r.token, response_body => 'of the replacement') FROM idem_record r WHERE (scope, key) = ('owner', 'c');
SELECT * FROM pg_temp.each_call('c', :'token');
SELECT outcome, attempt, response_body FROM idem_lookup('owner', 'c');
SELECT checkpoint IS NULL AS without_point FROM idem_record WHERE (scope, key) = ('owner', 'c');

-- its business rows go with it
CREATE TEMP TABLE business (n int);
BEGIN;
INSERT INTO business VALUES (1);
SELECT idem_assert('owner', 'c', token => :'token');
COMMIT;
SELECT count(*) FROM business;

-- the same after a re-claim of an abandoned claim, and after a forget
SELECT token FROM idem_claim('owner', 'd', lease => '30 min', on_abandon => 'retry') \gset
SELECT pg_temp.pass('owner', 'd', '30 min');
SELECT outcome, attempt FROM idem_claim('owner', 'd', lease => '1 hour');
SELECT * FROM pg_temp.each_call('d', :'token');
SELECT idem_forget('owner', 'd');
SELECT * FROM pg_temp.each_call('d', :'token');

-- over once the token has finished, unknown included; a finish to settle the
-- unknown is another matter
SELECT token FROM idem_claim('owner', 'e', lease => '1 hour') \gset
SELECT idem_finish('owner', 'e', token => :'token', state => 'unknown');
SELECT * FROM pg_temp.each_call('e', :'token');
SELECT token FROM idem_claim('owner', 'f', lease => '1 hour') \gset
SELECT idem_finish('owner', 'f', token => :'token', state => 'released');
SELECT * FROM pg_temp.each_call('f', :'token');
SELECT token FROM idem_claim('owner', 'g', lease => '1 hour') \gset
SELECT idem_finish('owner', 'g', token => :'token', state => 'failed');
SELECT * FROM pg_temp.each_call('g', :'token');

-- a transactional claim has nothing to extend, record or fence
BEGIN;
SELECT token FROM idem_claim('owner', 'h') \gset
SELECT f.* FROM pg_temp.failing('SELECT idem_extend(''owner'', ''h'', lease => ''1 hour'')') f;
SELECT state, lease FROM idem_record WHERE (scope, key) = ('owner', 'h');
SELECT * FROM pg_temp.each_call('h', :'token');
ROLLBACK;

-- the token may be left out in the transaction of the claim, and nowhere else
BEGIN;
SELECT outcome FROM idem_claim('owner', 'i', lease => '1 hour');
SELECT pg_temp.distance(idem_extend('owner', 'i', lease => '2 hours'));
SELECT pg_temp.distance(idem_checkpoint('owner', 'i', checkpoint => 'c'));
SELECT idem_assert('owner', 'i');
COMMIT;
SELECT * FROM pg_temp.each_call('i', NULL);
SELECT pg_temp.kept('owner', 'i');

-- with a wrong token the transaction stays usable in a savepoint
BEGIN;
SAVEPOINT s;
SELECT idem_checkpoint('owner', 'i', token => '00000000-0000-4000-8000-000000000000', checkpoint => 'x');
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT checkpoint FROM idem_record WHERE (scope, key) = ('owner', 'i');
COMMIT;

-- a checkpoint is limited like a response
SET idempotency.max_response = '10';
SELECT token FROM idem_claim('owner', 'j', lease => '1 hour') \gset
SELECT f.code, f.message FROM pg_temp.failing(format('SELECT idem_checkpoint(''owner'', ''j'', token => %L, checkpoint => ''12345678901'')', :'token')) f;
SELECT f.code, f.message FROM pg_temp.failing(format('SELECT idem_checkpoint(''owner'', ''j'', token => %L, checkpoint => ''1234'', checkpoint_data => ''1e6'')', :'token')) f;
SELECT pg_temp.distance(idem_checkpoint('owner', 'j', token => :'token', checkpoint => '1234', checkpoint_data => '1e5'));
RESET idempotency.max_response;

DELETE FROM idem_record WHERE scope = 'owner';
