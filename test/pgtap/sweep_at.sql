--
-- sweep_at is written by the C code, which fills the row itself, and declared
-- as generated, which is what UPDATE and COPY go by.  Both must agree for every
-- record that the calls can make, and with what the sweep then deletes.
--
\set ON_ERROR_STOP on
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;
DELETE FROM idem_record;

SELECT plan(6);

-- Each way a record can be claimed, with a lease shorter and longer than its
-- life, and each way it can go on from there.
CREATE TEMP TABLE made (key text, was timestamptz);
DO $$
DECLARE
	_claim text;
	_step text;
	_key text;
	_token uuid;
BEGIN
	FOREACH _claim IN ARRAY ARRAY[
		'lease => ''0''', 'lease => ''0'', on_abandon => ''retry''',
		'lease => ''1 h'', ttl => ''1 day''', 'lease => ''1 h'', ttl => ''1 day'', on_abandon => ''retry''',
		'lease => ''2 days'', ttl => ''1 s''', 'lease => ''2 days'', ttl => ''1 s'', on_abandon => ''retry''',
		'lease => ''1 h'', claim_token => gen_random_uuid()'] LOOP
		FOREACH _step IN ARRAY ARRAY['', 'extend', 'extend, shorter', 'checkpoint', 'checkpoint, retry', 'checkpoint, unknown', 'succeeded', 'failed', 'released', 'unknown',
			'unknown, succeeded', 'unknown, released', 'released, claim', 'released, claim, retry', 'released, claim, transactional', 'unknown, takeover', 'unknown, takeover, transactional',
			'released, takeover', 'unknown, resolve, succeeded', 'unknown, resolve, released', 'failed, for long'] LOOP
			CONTINUE WHEN _claim ~ 'lease => ''0''' AND _step ~ '^(extend|checkpoint)';
			_key := _claim || ': ' || _step;
			EXECUTE format('SELECT token FROM idem_claim(''pgtap'', %L, %s)', _key, _claim) INTO _token;
			CASE
				WHEN _step = 'extend' THEN PERFORM idem_extend('pgtap', _key, token => _token);
				WHEN _step = 'extend, shorter' THEN PERFORM idem_extend('pgtap', _key, token => _token, lease => '1 s');
				WHEN _step = 'checkpoint' THEN PERFORM idem_checkpoint('pgtap', _key, token => _token, checkpoint => 'c');
				WHEN _step = 'checkpoint, retry' THEN PERFORM idem_checkpoint('pgtap', _key, token => _token, checkpoint => 'c', on_abandon => 'retry', lease => '10 days');
				WHEN _step = 'checkpoint, unknown' THEN PERFORM idem_checkpoint('pgtap', _key, token => _token, checkpoint => 'c', on_abandon => 'unknown');
				WHEN _step = 'failed, for long' THEN PERFORM idem_finish('pgtap', _key, token => _token, state => 'failed', ttl => '90 days');
				WHEN _step ~ '^(succeeded|failed|released|unknown)' THEN
					PERFORM idem_finish('pgtap', _key, token => _token, state => split_part(_step, ',', 1));
				ELSE NULL;
			END CASE;
			CASE
				WHEN _step = 'unknown, succeeded' THEN PERFORM idem_finish('pgtap', _key, token => _token);
				WHEN _step = 'unknown, released' THEN PERFORM idem_finish('pgtap', _key, token => _token, state => 'released');
				WHEN _step = 'released, claim' THEN PERFORM * FROM idem_claim('pgtap', _key, lease => '1 h');
				WHEN _step = 'released, claim, retry' THEN PERFORM * FROM idem_claim('pgtap', _key, lease => '9 days', on_abandon => 'retry');
				WHEN _step = 'released, claim, transactional' THEN PERFORM * FROM idem_claim('pgtap', _key);
				WHEN _step IN ('unknown, takeover', 'released, takeover') THEN PERFORM * FROM idem_takeover('pgtap', _key, lease => '1 h');
				WHEN _step = 'unknown, takeover, transactional' THEN PERFORM * FROM idem_takeover('pgtap', _key);
				WHEN _step = 'unknown, resolve, succeeded' THEN PERFORM * FROM idem_resolve('pgtap', _key, state => 'succeeded');
				WHEN _step = 'unknown, resolve, released' THEN PERFORM * FROM idem_resolve('pgtap', _key, state => 'released', ttl => '3 s');
				ELSE NULL;
			END CASE;
			EXECUTE 'INSERT INTO made SELECT key, sweep_at FROM idem_record WHERE (scope, key) = (''pgtap'', $1)' USING _key;
		END LOOP;
	END LOOP;
	PERFORM idem_once('pgtap', 'once'), idem_once('pgtap', 'once, shorter', ttl => '1 s');
	PERFORM * FROM idem_execute('pgtap', 'executed', command => 'SELECT 1');
	INSERT INTO made SELECT key, sweep_at FROM idem_record WHERE key ~ '^(once|executed)';
END $$;

-- an UPDATE of any column makes the server compute it again
UPDATE idem_record SET attempt = attempt;
SELECT cmp_ok(count(*), '>', 130::bigint, 'records of every kind') FROM made;
SELECT is(count(DISTINCT state), 5::bigint, 'in every state') FROM idem_record;
SELECT is_empty(
	'SELECT m.key, m.was, r.sweep_at FROM made m JOIN idem_record r USING (key) WHERE r.sweep_at IS DISTINCT FROM m.was',
	'sweep_at as C computes it is what its expression says');

-- what it means, said a third time
SELECT is_empty(
	$$SELECT key FROM idem_record WHERE sweep_at IS DISTINCT FROM CASE
		WHEN state IN ('succeeded', 'failed', 'released') THEN expires_at
		WHEN state = 'processing' AND lease IS NULL THEN expires_at
		WHEN state = 'processing' AND on_abandon = 'retry' THEN greatest(expires_at, lease_expires_at) END$$,
	'settled, released and transactional records go at their end, abandoned ones not before the end of their lease, unknown ones never');

-- Long after, the sweep takes what has a sweep_at and leaves the rest; a
-- processing record without a lease is this transaction's own claim and stays.
UPDATE idem_record SET created_at = created_at - interval '100 years', claimed_at = claimed_at - interval '100 years',
	expires_at = expires_at - interval '100 years', finished_at = finished_at - interval '100 years', lease_expires_at = lease_expires_at - interval '100 years';
CREATE TEMP TABLE due AS SELECT key FROM idem_record WHERE sweep_at IS NOT NULL AND state <> 'processing';
SELECT is(deleted, (SELECT count(*) FROM due), 'the sweep deletes what is due') FROM idem_sweep(100000);
SELECT is_empty('SELECT key FROM idem_record JOIN due USING (key)', 'and nothing that is due is left');

SELECT * FROM finish();
ROLLBACK;
