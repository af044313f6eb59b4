--
-- Looking up: never writes, and tells what the next claim would meet.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- absent
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'a') l;

-- replayed
BEGIN;
SELECT outcome FROM idem_claim('lookup', 'a', 'me', request => '1');
SELECT idem_finish('lookup', 'a', 'me', response_code => 200, response_body => 'ok', response_headers => '{}');
COMMIT;
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'a', 'me') l;
SELECT outcome FROM idem_lookup('lookup', 'a');
BEGIN;
SELECT outcome FROM idem_claim('lookup', 'b');
SELECT idem_finish('lookup', 'b', state => 'failed', response_bytes => '\x00');
COMMIT;
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'b') l;

-- in progress
SELECT token FROM idem_claim('lookup', 'c', lease => '1 hour', ttl => '3 hours') \gset
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'c') l;
SELECT idem_checkpoint('lookup', 'c', token => :'token', checkpoint => 'point', checkpoint_data => '{"a": null}') IS NOT NULL AS recorded;
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'c') l;

-- nothing is told of what is not committed, be it the transaction's own
BEGIN;
SELECT outcome FROM idem_claim('lookup', 'own', lease => '1 hour');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'own') l;
ROLLBACK;
BEGIN;
SELECT outcome FROM idem_claim('lookup', 'own');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'own') l;
ROLLBACK;

-- unknown: the lease is over
SELECT pg_temp.pass('lookup', 'c', '100 min');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'c') l;
-- unknown: recorded, and for ever
SELECT idem_finish('lookup', 'c', token => :'token', state => 'unknown');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'c') l;
SELECT pg_temp.pass('lookup', 'c', '100 years');
SELECT outcome, state, attempt, checkpoint FROM idem_lookup('lookup', 'c');

-- released: the next claim gets it, be it released or abandoned with retry
SELECT idem_finish('lookup', 'c', token => :'token', state => 'released');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'c') l;
SELECT outcome FROM idem_claim('lookup', 'd', lease => '1 hour', ttl => '3 hours', on_abandon => 'retry');
SELECT pg_temp.pass('lookup', 'd', '70 min');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'd') l;

-- expired: absent, though nothing was swept; but a live lease never expires
SELECT pg_temp.pass('lookup', 'd', '2 hours');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'd') l;
SELECT pg_temp.pass('lookup', 'a', '1 day');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'a', 'me') l;
SELECT pg_temp.pass('lookup', 'b', '1 day');
SELECT outcome FROM idem_lookup('lookup', 'b');
SELECT pg_temp.pass('lookup', 'c', '1 day');
SELECT outcome FROM idem_lookup('lookup', 'c');
SELECT outcome FROM idem_claim('lookup', 'e', lease => '1 hour', ttl => '10 min', on_abandon => 'retry');
SELECT pg_temp.pass('lookup', 'e', '30 min');
SELECT pg_temp.seen(to_jsonb(l)) FROM idem_lookup('lookup', 'e') l;
SELECT count(*) AS still_stored FROM idem_record WHERE scope = 'lookup';

-- works where nothing can be written, and takes no transaction id
BEGIN TRANSACTION READ ONLY;
SELECT l.outcome FROM unnest('{a,c,d,e}'::text[]) WITH ORDINALITY k(key, n), LATERAL idem_lookup('lookup', k.key) l ORDER BY k.n;
SELECT pg_current_xact_id_if_assigned() IS NULL AS without_xid;
COMMIT;
BEGIN TRANSACTION ISOLATION LEVEL SERIALIZABLE READ ONLY DEFERRABLE;
SELECT outcome FROM idem_lookup('lookup', 'c');
COMMIT;

-- in a plain target list, and in a query of its own for each row
SELECT (idem_lookup('lookup', 'c')).outcome;
SELECT count(*) FROM pg_class WHERE (SELECT outcome FROM idem_lookup('lookup', relname)) <> 'absent';

DELETE FROM idem_record WHERE scope = 'lookup';
