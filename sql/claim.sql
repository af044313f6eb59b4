--
-- What a claim answers: every outcome with all its columns.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- claimed, for the transaction only: no lease, a token, a day to live
BEGIN;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'a', '42', request => '{"n": 1}') c;
SELECT pg_temp.kept('claim', 'a', '42');

-- again in the same transaction: mismatch first, then at once in_progress
-- whatever the wait, and nothing is told about what is not committed
SET LOCAL statement_timeout = '60s';
SELECT pg_temp.seen(to_jsonb(c))
FROM idem_claim('claim', 'a', '42', request => '{"n": 2}', wait => '1 hour') c;
SELECT pg_temp.seen(to_jsonb(c))
FROM idem_claim('claim', 'a', '42', request => '{"n": 1}', wait => '1 hour') c;

-- after its finish: replayed, in this transaction and in every other
SELECT idem_finish('claim', 'a', '42', response_code => 201, response_body => 'made',
	response_headers => '{"Location": "/1"}');
SELECT pg_temp.seen(to_jsonb(c))
FROM idem_claim('claim', 'a', '42', request => '{"n": 1}', wait => '1 hour') c;
COMMIT;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'a', '42', request => '{"n": 1}') c;
SELECT pg_temp.kept('claim', 'a', '42');

-- a mismatch tells the state and nothing else
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'a', '42', request => '{"n": 2}') c;

-- a replay writes nothing, so that it needs no transaction id
BEGIN;
SELECT outcome FROM idem_claim('claim', 'a', '42', request => '{"n": 1}');
SELECT outcome FROM idem_claim('claim', 'a', '42');
SELECT pg_current_xact_id_if_assigned() IS NULL AS without_xid;
COMMIT;

-- a refusal replays too, with the body as bytes; a NULL code is normal
BEGIN;
SELECT outcome FROM idem_claim('claim', 'b');
SELECT idem_finish('claim', 'b', state => 'failed', response_bytes => '\x00ff');
COMMIT;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'b') c;

-- a response may be nothing at all
BEGIN;
SELECT outcome FROM idem_claim('claim', 'c');
SELECT idem_finish('claim', 'c');
COMMIT;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'c') c;

-- claimed with a lease: this one may be committed
SELECT pg_temp.seen(to_jsonb(c))
FROM idem_claim('claim', 'd', request => '1', ttl => '2 hours', lease => '30 min') c;
SELECT pg_temp.kept('claim', 'd');

-- in progress: committed, so the state, the attempt and the lease are told
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'd', request => '1') c;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'd', request => '2') c;

-- the lease is over and the policy is "unknown": nobody may run it, ever
SELECT idem_checkpoint('claim', 'd', token => token, checkpoint => 'charging',
	checkpoint_data => '{"ref": 7}') IS NOT NULL AS checkpointed
FROM idem_record WHERE (scope, key) = ('claim', 'd');
SELECT pg_temp.pass('claim', 'd', '30 min');
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'd', request => '1', lease => '1 hour') c;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'd', request => '2', lease => '1 hour') c;
SELECT pg_temp.pass('claim', 'd', '100 years');
SELECT pg_temp.seen(to_jsonb(c) - '{lease_expires_at}'::text[])
FROM idem_claim('claim', 'd', request => '1', lease => '1 hour') c;

-- the same for an unknown that was recorded; the token that is none says nothing
SELECT idem_finish('claim', 'd', token => token, state => 'unknown')
FROM idem_record WHERE (scope, key) = ('claim', 'd');
SELECT pg_temp.seen(to_jsonb(c) - '{lease_expires_at}'::text[])
FROM idem_claim('claim', 'd', request => '1', lease => '1 hour', wait => '1 ms') c;

-- the lease is over and the policy is "retry": the next claim gets it, with
-- the checkpoint, and brings its own ttl and policy
SELECT token AS first FROM idem_claim('claim', 'e', request => '1', lease => '30 min', on_abandon => 'retry') \gset
SELECT idem_checkpoint('claim', 'e', token => :'first', checkpoint => 'half') IS NOT NULL AS checkpointed;
SELECT pg_temp.pass('claim', 'e', '30 min');
SELECT outcome, state FROM idem_claim('claim', 'e', request => '2');
SELECT pg_temp.seen(to_jsonb(c)) AS answer, token <> :'first' AS new_token
FROM idem_claim('claim', 'e', request => '1', lease => '1 hour', ttl => '3 hours', on_abandon => 'unknown') c;
SELECT pg_temp.kept('claim', 'e');

-- released: the next claim gets it, and nothing is recovered; the checkpoint stays
SELECT idem_finish('claim', 'e', token => token, state => 'released')
FROM idem_record WHERE (scope, key) = ('claim', 'e');
SELECT pg_temp.kept('claim', 'e');
SELECT outcome, state FROM idem_claim('claim', 'e', request => '2');
BEGIN;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'e', request => '1') c;
SELECT pg_temp.kept('claim', 'e');
SELECT idem_finish('claim', 'e', state => 'released');

-- a claim that was released in this transaction can be claimed again in it
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'e', request => '1', ttl => '10 min') c;
SELECT idem_finish('claim', 'e', response_code => 204);
COMMIT;
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'e', request => '1') c;
SELECT pg_temp.kept('claim', 'e');

-- expired, swept or not, is absent: a new life with nothing of the old one
SELECT pg_temp.pass('claim', 'e', '10 min');
SELECT pg_temp.seen(to_jsonb(c)) FROM idem_claim('claim', 'e', request => '2', lease => '1 hour') c;
SELECT pg_temp.kept('claim', 'e');

-- many keys in one statement, and one of them twice
BEGIN;
SELECT v.key, c.outcome
FROM (VALUES (1, 'x'), (2, 'y'), (3, 'x'), (4, 'z')) AS v(n, key),
	LATERAL idem_claim('claim', v.key) c ORDER BY v.n;
ROLLBACK;

-- a claim that is rolled back leaves nothing
BEGIN;
SELECT outcome FROM idem_claim('claim', 'f', lease => '1 hour');
ROLLBACK;
SELECT outcome FROM idem_lookup('claim', 'f');

-- positional order of the arguments
SELECT pg_temp.seen(to_jsonb(c))
FROM idem_claim('claim', 'g', 'me', NULL, sha256('x'), '1 hour', '20 min', '0', 'retry',
	'00000000-0000-4000-8000-000000000001') c;
SELECT pg_temp.kept('claim', 'g', 'me'), token, fingerprint = sha256('x')
FROM idem_record WHERE (scope, key) = ('claim', 'g');

DELETE FROM idem_record WHERE scope = 'claim';
