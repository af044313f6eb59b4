--
-- Messages: idem_once and idem_once_batch.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

SELECT idem_once('once', 'a');
SELECT idem_once('once', 'a');
SELECT idem_once('once', 'a', 'me');
SELECT idem_once('twice', 'a');
SELECT pg_temp.kept('once', 'a');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('once', 'a') l;

-- its life: the setting of its own, or as given
SELECT idem_once('once', 'b', ttl => '1 hour'), idem_once('once', 'c', '', '2 hours');
SET idempotency.once_ttl = '3h';
SELECT idem_once('once', 'd'), idem_once('once', 'a', ttl => '1 hour');
RESET idempotency.once_ttl;
SELECT key, pg_temp.distance(expires_at), ttl FROM idem_record WHERE scope = 'once' AND principal = '' ORDER BY key;

-- expired is absent
SELECT pg_temp.pass('once', 'b', '1 hour');
SELECT idem_once('once', 'b');
SELECT idem_once('once', 'b');
SELECT pg_temp.kept('once', 'b');

-- within the consumer's transaction: the mark goes with the work
CREATE TEMP TABLE done (message text);
BEGIN;
SELECT idem_once('once', 'e');
SELECT idem_once('once', 'e');
INSERT INTO done VALUES ('e');
ROLLBACK;
BEGIN;
SAVEPOINT s;
SELECT idem_once('once', 'e');
ROLLBACK TO s;
SELECT idem_once('once', 'e');
INSERT INTO done VALUES ('e');
COMMIT;
SELECT idem_once('once', 'e'), count(*) FROM done;
INSERT INTO done SELECT m FROM unnest('{f,g,f,e}'::text[]) m WHERE idem_once('once', m);
SELECT message FROM done ORDER BY message;

-- no lease, no unfinished claim: a commit is never refused because of it
BEGIN;
SELECT idem_once('once', 'h');
COMMIT;

-- a record of a claim: settled is seen, anything else is an error
CREATE FUNCTION pg_temp.on_record_of_claim(_key text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(': ', f.code, f.message, f.detail, f.hint) FROM pg_temp.failing(format('SELECT idem_once(''once'', %L)', _key)) f
$$;
SELECT token FROM idem_claim('once', 'i', lease => '1 hour') \gset
SELECT pg_temp.on_record_of_claim('i');
SELECT pg_temp.pass('once', 'i', '1 hour');
SELECT pg_temp.on_record_of_claim('i');
SELECT idem_finish('once', 'i', token => :'token', state => 'unknown');
SELECT pg_temp.on_record_of_claim('i');
SELECT idem_finish('once', 'i', token => :'token', state => 'released');
SELECT pg_temp.on_record_of_claim('i');
SELECT outcome, attempt FROM idem_lookup('once', 'i');
SELECT token FROM idem_claim('once', 'i', lease => '1 hour') \gset
SELECT idem_finish('once', 'i', token => :'token');
SELECT idem_once('once', 'i');
SELECT token FROM idem_claim('once', 'j', lease => '1 hour') \gset
SELECT idem_finish('once', 'j', token => :'token', state => 'failed');
SELECT idem_once('once', 'j');
SELECT pg_temp.pass('once', 'j', '1 day');
SELECT idem_once('once', 'j');
BEGIN;
SELECT outcome FROM idem_claim('once', 'k');
SELECT pg_temp.on_record_of_claim('k');
SELECT idem_finish('once', 'k');
SELECT idem_once('once', 'k');
COMMIT;
-- expired and to be retried is absent
SELECT outcome FROM idem_claim('once', 'l', lease => '1 hour', on_abandon => 'retry', request => '1');
SELECT pg_temp.pass('once', 'l', '1 day');
SELECT idem_once('once', 'l');
SELECT pg_temp.kept('once', 'l');

-- and the other way round: a claim of a message's key replays nothing
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('once', 'a') c;
SELECT outcome FROM idem_claim('once', 'a', request => '1');

-- a batch: those that are new, each once, in order of their bytes
SELECT idem_once_batch('batch', '{b,a,c,b,B}');
SELECT idem_once_batch('batch', '{c,d,a}');
SELECT * FROM idem_once_batch('batch', '{c,d,a}', 'me') AS fresh;
SELECT count(*) FROM idem_once_batch('batch', '{}');
SELECT idem_once_batch('batch', '{{x,y},{y,z}}', ttl => '1 hour');
SELECT idem_once_batch('batch', '[5:6]={w,v}', '', '2 hours');
SELECT key, pg_temp.distance(expires_at) FROM idem_record WHERE scope = 'batch' AND principal = '' ORDER BY key;
SELECT pg_temp.pass('batch', 'x', '1 hour');
SELECT idem_once_batch('batch', '{x,y}');

-- all are marked, however few are fetched; 500 in one call
SELECT key FROM idem_once_batch('batch', '{m2,m1}') AS key LIMIT 1;
SELECT count(*) FROM idem_record WHERE scope = 'batch' AND key ~ '^m';
SELECT idem_once_batch('batch', '{n2,n1}') LIMIT 1;
SELECT count(*) FROM idem_record WHERE scope = 'batch' AND key ~ '^n';
SELECT count(*), count(DISTINCT key) FROM idem_once_batch('500', ARRAY(SELECT 'k' || n FROM generate_series(1, 500) n)) AS key;
SELECT count(*) FROM idem_once_batch('500', ARRAY(SELECT 'k' || n FROM generate_series(1, 501) n)) AS key;

-- the keys of a column, one batch for each row
SELECT g.n, string_agg(b, ' ' ORDER BY b) FROM (VALUES (1, '{p,q}'::text[]), (2, '{q,r}')) g(n, keys), LATERAL idem_once_batch('batch', g.keys) b GROUP BY g.n ORDER BY g.n;

-- one bad key, or one claim in the way, and none is marked
SELECT f.code FROM pg_temp.failing('SELECT idem_once_batch(''batch'', ''{s,t,"",u}'')') f;
SELECT outcome FROM idem_claim('batch', 't', lease => '1 hour');
SELECT f.code, f.message FROM pg_temp.failing('SELECT idem_once_batch(''batch'', ''{s,t,u}'')') f;
SELECT count(*) FROM idem_record WHERE scope = 'batch' AND key IN ('s', 'u');

DELETE FROM idem_record WHERE scope IN ('once', 'twice', 'batch', '500');
