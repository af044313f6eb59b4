--
-- Finishing: which states, by whom, and how long the record then lives.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

CREATE FUNCTION pg_temp.leased(_key text) RETURNS uuid LANGUAGE sql AS $$
	SELECT token FROM idem_claim('finish', _key, lease => '1 hour')
$$;

-- each state, as recorded: true now, false for the same token and state again,
-- and the first answer stays
SELECT pg_temp.leased('succeeded') AS token \gset
SELECT idem_finish('finish', 'succeeded', token => :'token', response_code => 200, response_body => 'one');
SELECT idem_finish('finish', 'succeeded', token => :'token', response_code => 500, response_body => 'two');
SELECT pg_temp.kept('finish', 'succeeded');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''succeeded'', token => %L, state => ''failed'')', :'token')) f;
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''succeeded'', token => %L, state => ''released'')', :'token')) f;
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''succeeded'', token => %L, state => ''unknown'')', :'token')) f;
SELECT pg_temp.kept('finish', 'succeeded') ->> 'state';

SELECT pg_temp.leased('failed') AS token \gset
SELECT idem_finish('finish', 'failed', token => :'token', state => 'failed', response_headers => '[1]');
SELECT idem_finish('finish', 'failed', token => :'token', state => 'failed');
SELECT pg_temp.kept('finish', 'failed');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''failed'', token => %L)', :'token')) f;

SELECT pg_temp.leased('released') AS token \gset
SELECT idem_finish('finish', 'released', token => :'token', state => 'released');
SELECT idem_finish('finish', 'released', token => :'token', state => 'released');
SELECT pg_temp.kept('finish', 'released');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''released'', token => %L)', :'token')) f;

-- unknown: the same token may still settle it, and an unknown record carries
-- a lapsed lease
SELECT pg_temp.leased('unknown') AS token \gset
SELECT idem_finish('finish', 'unknown', token => :'token', state => 'unknown');
SELECT idem_finish('finish', 'unknown', token => :'token', state => 'unknown');
SELECT pg_temp.kept('finish', 'unknown');
SELECT idem_finish('finish', 'unknown', token => :'token', response_body => 'settled');
SELECT pg_temp.kept('finish', 'unknown');

-- so may an unknown that was a transactional claim
BEGIN;
SELECT token FROM idem_claim('finish', 'unknown 2') \gset
SELECT idem_finish('finish', 'unknown 2', state => 'unknown');
COMMIT;
SELECT pg_temp.kept('finish', 'unknown 2');
SELECT idem_finish('finish', 'unknown 2', token => :'token', state => 'released');
SELECT pg_temp.kept('finish', 'unknown 2');

-- a lapsed lease does not end ownership: the token does
SELECT pg_temp.leased('late') AS token \gset
SELECT pg_temp.pass('finish', 'late', '2 hours');
SELECT outcome FROM idem_lookup('finish', 'late');
SELECT idem_finish('finish', 'late', token => :'token');
SELECT outcome, state FROM idem_lookup('finish', 'late');

-- a lapsed unknown keeps the time at which it lapsed
SELECT pg_temp.leased('late 2') AS token \gset
SELECT pg_temp.pass('finish', 'late 2', '2 hours');
SELECT idem_finish('finish', 'late 2', token => :'token', state => 'unknown');
SELECT pg_temp.kept('finish', 'late 2');

-- nor does expiry, until somebody acts
SELECT token FROM idem_claim('finish', 'late 3', lease => '1 hour', on_abandon => 'retry') \gset
SELECT pg_temp.pass('finish', 'late 3', '100 days');
SELECT outcome FROM idem_lookup('finish', 'late 3');
SELECT idem_finish('finish', 'late 3', token => :'token', response_code => 1);
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('finish', 'late 3') l;

-- lost: taken over, gone
SELECT pg_temp.leased('lost') AS token \gset
SELECT pg_temp.pass('finish', 'lost', '2 hours');
SELECT outcome, attempt FROM idem_takeover('finish', 'lost', lease => '1 hour');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''lost'', token => %L)', :'token')) f;
SELECT idem_finish('finish', 'lost', token => token, response_body => 'the second') FROM idem_record WHERE (scope, key) = ('finish', 'lost');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''lost'', token => %L)', :'token')) f;
SELECT response_body FROM idem_lookup('finish', 'lost');
SELECT idem_forget('finish', 'lost');
SELECT f.* FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''lost'', token => %L)', :'token')) f;

-- a token of another key, scope or principal is as good as none
SELECT pg_temp.leased('own') AS token \gset
SELECT pg_temp.leased('other') AS other \gset
SELECT f.code, f.detail FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''own'', token => %L)', :'other')) f;
SELECT f.code, f.detail FROM pg_temp.failing(format('SELECT idem_finish(''finish'', ''own'', ''me'', token => %L)', :'token')) f;
SELECT f.code, f.detail FROM pg_temp.failing(format('SELECT idem_finish(''finished'', ''own'', token => %L)', :'token')) f;
SELECT state, attempt FROM idem_lookup('finish', 'own');

-- the token may be left out only by the transaction that wrote the record
SELECT f.* FROM pg_temp.failing('SELECT idem_finish(''finish'', ''own'')') f;
SELECT f.* FROM pg_temp.failing('SELECT idem_finish(''finish'', ''never seen'')') f;
BEGIN;
SELECT idem_extend('finish', 'own', token => :'token') IS NOT NULL AS extended;
SELECT idem_finish('finish', 'own');
ROLLBACK;
BEGIN;
SELECT idem_checkpoint('finish', 'own', token => :'token', checkpoint => 'c') IS NOT NULL AS recorded;
SELECT idem_finish('finish', 'own', state => 'failed');
ROLLBACK;
BEGIN;
SELECT outcome FROM idem_takeover('finish', 'own', force => true);
SELECT idem_finish('finish', 'own', state => 'released');
ROLLBACK;
BEGIN;
SELECT outcome FROM idem_claim('finish', 'mine', lease => '1 hour');
SELECT idem_finish('finish', 'mine');
SELECT idem_finish('finish', 'mine');
SELECT f.code, f.detail FROM pg_temp.failing('SELECT idem_finish(''finish'', ''mine'', state => ''failed'')') f;
ROLLBACK;
-- an assert writes nothing
BEGIN;
SELECT idem_assert('finish', 'own', token => :'token');
SELECT f.code, f.argument FROM pg_temp.failing('SELECT idem_finish(''finish'', ''own'')') f;
ROLLBACK;

-- an error of finish leaves the transaction and its claim as they were
BEGIN;
SELECT outcome FROM idem_claim('finish', 'again');
SAVEPOINT s;
SELECT idem_finish('finish', 'again', token => '00000000-0000-4000-8000-000000000000');
ROLLBACK TO s;
SELECT idem_finish('finish', 'again');
COMMIT;
SELECT outcome FROM idem_lookup('finish', 'again');

-- positional order of the arguments
SELECT token FROM idem_claim('finish', 'order', 'me', lease => '1 hour') \gset
SELECT idem_finish('finish', 'order', 'me', :'token', 'failed', 418, 'short', '{"a": "b"}', NULL, '3 hours');
SELECT pg_temp.kept('finish', 'order', 'me');
SELECT token FROM idem_claim('finish', 'order', lease => '1 hour') \gset
SELECT idem_finish('finish', 'order', '', :'token', 'succeeded', NULL, NULL, NULL, '\x01', NULL);
SELECT pg_temp.kept('finish', 'order');

-- The finish of a transactional claim is a HOT update: it changes no column
-- that an index or its predicate is on.
BEGIN;
SELECT pg_stat_get_xact_tuples_hot_updated('idem_record'::regclass) AS hot_before \gset
SELECT outcome FROM idem_claim('finish', 'hot', request => '1');
SELECT idem_finish('finish', 'hot', response_code => 200, response_body => 'ok');
SELECT pg_stat_get_xact_tuples_hot_updated('idem_record'::regclass) - :hot_before AS hot;
COMMIT;

DELETE FROM idem_record WHERE scope = 'finish';
