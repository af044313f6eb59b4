--
-- How long a record lives: claim, finish, takeover, and what they set.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

CREATE FUNCTION pg_temp.life(_key text, OUT expires text, OUT ttl interval, OUT outcome text) LANGUAGE plpgsql AS $$
BEGIN
	SELECT pg_temp.distance(r.expires_at), r.ttl INTO expires, ttl FROM idem_record r WHERE (r.scope, r.key) = ('retention', _key);
	outcome := l.outcome FROM idem_lookup('retention', _key) l;
END $$;

-- a claim lives for its ttl, or that of the setting, exactly
SELECT token FROM idem_claim('retention', 'a', lease => '1 hour') \gset
SELECT * FROM pg_temp.life('a');
SELECT expires_at - claimed_at FROM idem_record WHERE (scope, key) = ('retention', 'a');
SET idempotency.ttl = '10h';
SELECT outcome FROM idem_claim('retention', 'b', lease => '1 hour');
SELECT * FROM pg_temp.life('b');
SELECT outcome FROM idem_claim('retention', 'c', lease => '1 hour', ttl => '1 month 1 s');
SELECT expires_at - claimed_at FROM idem_record WHERE (scope, key) = ('retention', 'c');
RESET idempotency.ttl;

-- a finish with at least half of it left keeps the end, so that it stays HOT
SELECT pg_temp.pass('retention', 'a', '11 hours');
SELECT idem_finish('retention', 'a', token => :'token');
SELECT * FROM pg_temp.life('a');

-- a finish with less sets it again
SELECT token FROM idem_claim('retention', 'd', lease => '1 hour') \gset
SELECT pg_temp.pass('retention', 'd', '13 hours');
SELECT idem_finish('retention', 'd', token => :'token');
SELECT * FROM pg_temp.life('d');

-- so a job longer than its ttl replays, for a full ttl from its end on
SELECT token FROM idem_claim('retention', 'e', lease => '100 hours', ttl => '2 hours') \gset
SELECT pg_temp.pass('retention', 'e', '50 hours');
SELECT * FROM pg_temp.life('e');
SELECT idem_finish('retention', 'e', token => :'token', response_code => 200);
SELECT * FROM pg_temp.life('e');
SELECT pg_temp.pass('retention', 'e', '110 min');
SELECT outcome FROM idem_claim('retention', 'e');
SELECT pg_temp.pass('retention', 'e', '10 min');
SELECT * FROM pg_temp.life('e');

-- a transactional claim, too
BEGIN;
SELECT outcome FROM idem_claim('retention', 'f', ttl => '2 hours');
SELECT pg_temp.pass('retention', 'f', '90 min');
SELECT idem_finish('retention', 'f');
COMMIT;
SELECT * FROM pg_temp.life('f');

-- an unknown that is resolved three ttls later replays for a full ttl
SELECT token FROM idem_claim('retention', 'g', lease => '1 hour', ttl => '2 hours') \gset
SELECT idem_finish('retention', 'g', token => :'token', state => 'unknown');
SELECT pg_temp.pass('retention', 'g', '6 hours');
SELECT * FROM pg_temp.life('g');
BEGIN;
SELECT outcome, pg_temp.distance(expires_at) FROM idem_takeover('retention', 'g');
SELECT idem_finish('retention', 'g', response_code => 200);
COMMIT;
SELECT * FROM pg_temp.life('g');
SELECT token FROM idem_claim('retention', 'h', lease => '1 hour', ttl => '2 hours') \gset
SELECT pg_temp.pass('retention', 'h', '6 hours');
SELECT outcome, state, pg_temp.distance(expires_at) FROM idem_resolve('retention', 'h', state => 'succeeded');
SELECT * FROM pg_temp.life('h');
-- so does one that its own token settles
SELECT token FROM idem_claim('retention', 'i', lease => '1 hour', ttl => '2 hours') \gset
SELECT idem_finish('retention', 'i', token => :'token', state => 'unknown');
SELECT pg_temp.pass('retention', 'i', '6 hours');
SELECT idem_finish('retention', 'i', token => :'token', state => 'failed');
SELECT * FROM pg_temp.life('i');

-- an explicit ttl always sets the end, longer or shorter, and is not the
-- record's ttl
SELECT token FROM idem_claim('retention', 'j', lease => '1 hour') \gset
SELECT idem_finish('retention', 'j', token => :'token', ttl => '10 min');
SELECT * FROM pg_temp.life('j');
SELECT token FROM idem_claim('retention', 'k', lease => '1 hour') \gset
SELECT idem_finish('retention', 'k', token => :'token', state => 'released', ttl => '30 days');
SELECT * FROM pg_temp.life('k');
SELECT outcome FROM idem_claim('retention', 'l', lease => '1 hour');
SELECT pg_temp.pass('retention', 'l', '1 hour');
SELECT outcome, pg_temp.distance(expires_at) FROM idem_resolve('retention', 'l', state => 'failed', ttl => '3 hours');
SELECT * FROM pg_temp.life('l');

-- a repeated finish does not prolong it
SELECT token FROM idem_claim('retention', 'm', lease => '1 hour') \gset
SELECT idem_finish('retention', 'm', token => :'token');
SELECT pg_temp.pass('retention', 'm', '20 hours');
SELECT idem_finish('retention', 'm', token => :'token', ttl => '10 days');
SELECT * FROM pg_temp.life('m');

-- a re-claim brings a ttl of its own, a takeover keeps the record's
SELECT token FROM idem_claim('retention', 'n', lease => '1 hour', ttl => '5 hours') \gset
SELECT idem_finish('retention', 'n', token => :'token', state => 'released');
SELECT pg_temp.pass('retention', 'n', '1 hour');
SELECT outcome FROM idem_claim('retention', 'n', lease => '1 hour', ttl => '3 hours');
SELECT * FROM pg_temp.life('n');
SELECT pg_temp.pass('retention', 'n', '100 min');
SELECT outcome FROM idem_takeover('retention', 'n', lease => '1 hour');
SELECT * FROM pg_temp.life('n');

-- a checkpoint or heartbeat renews the lease and not the life
SELECT token FROM idem_claim('retention', 'o', lease => '1 hour', ttl => '2 hours') \gset
SELECT pg_temp.pass('retention', 'o', '90 min');
SELECT pg_temp.distance(idem_extend('retention', 'o', token => :'token'));
SELECT pg_temp.distance(idem_checkpoint('retention', 'o', token => :'token', checkpoint => 'c', on_abandon => 'retry'));
SELECT * FROM pg_temp.life('o');
-- past its end a record with a live lease is in progress all the same, and
-- absent the moment both are over
SELECT pg_temp.pass('retention', 'o', '40 min');
SELECT * FROM pg_temp.life('o');
SELECT pg_temp.pass('retention', 'o', '20 min');
SELECT * FROM pg_temp.life('o');
-- another life begins without anything of the old one
SELECT outcome, attempt, recovered, checkpoint FROM idem_claim('retention', 'o', lease => '1 hour');
SELECT checkpoint, created_at = claimed_at AS new FROM idem_record WHERE (scope, key) = ('retention', 'o');

-- what a lookup of each tells after the end of its life
SELECT key, pg_temp.pass('retention', key, '100 days') FROM idem_record WHERE scope = 'retention' AND key IN ('a', 'i', 'k') ORDER BY key;
SELECT outcome FROM idem_claim('retention', 'i', lease => '1 hour') UNION ALL
SELECT outcome FROM idem_lookup('retention', 'a') UNION ALL SELECT outcome FROM idem_lookup('retention', 'k');

-- to the moment, of the record's life and of the lease
SELECT token FROM idem_claim('retention', 'q', lease => '1 hour') \gset
UPDATE idem_record SET lease_expires_at = clock_timestamp() + interval '30 s' WHERE (scope, key) = ('retention', 'q');
SELECT outcome FROM idem_lookup('retention', 'q');
UPDATE idem_record SET lease_expires_at = clock_timestamp() WHERE (scope, key) = ('retention', 'q');
SELECT outcome FROM idem_lookup('retention', 'q');
SELECT idem_finish('retention', 'q', token => :'token');
UPDATE idem_record SET expires_at = clock_timestamp() + interval '30 s' WHERE (scope, key) = ('retention', 'q');
SELECT more FROM idem_sweep();
SELECT outcome FROM idem_claim('retention', 'q', lease => '1 hour');
UPDATE idem_record SET expires_at = clock_timestamp() WHERE (scope, key) = ('retention', 'q');
SELECT outcome FROM idem_lookup('retention', 'q');
SELECT outcome FROM idem_claim('retention', 'q', lease => '1 hour');

-- time zones and daylight saving time change nothing
SET timezone = 'America/New_York';
SELECT token FROM idem_claim('retention', 'p', lease => '1 hour', ttl => '6 months') \gset
SELECT expires_at - claimed_at = interval '180 days' FROM idem_record WHERE (scope, key) = ('retention', 'p');
SET timezone = 'Etc/GMT-14';
SELECT expires_at - claimed_at = interval '180 days' FROM idem_record WHERE (scope, key) = ('retention', 'p');
SELECT idem_finish('retention', 'p', token => :'token');
SELECT pg_temp.pass('retention', 'p', '179 days 23 hours 50 min');
SELECT outcome FROM idem_claim('retention', 'p');
SET timezone = 'Etc/GMT+12';
SELECT outcome FROM idem_claim('retention', 'p');
SELECT pg_temp.pass('retention', 'p', '10 min');
SELECT outcome FROM idem_lookup('retention', 'p');

DELETE FROM idem_record WHERE scope = 'retention';
