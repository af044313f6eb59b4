--
-- The catalog contract of the table and its views.
--
\set ON_ERROR_STOP on
SET client_min_messages = warning;
BEGIN;
CREATE EXTENSION IF NOT EXISTS pgtap;

SELECT plan(50);

SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod), attnotnull,
			CASE WHEN attcollation = 0 THEN NULL ELSE (SELECT collname::text COLLATE "default" FROM pg_collation WHERE oid = attcollation) END
		FROM pg_attribute WHERE attrelid = 'idem_record'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum$$,
	$$VALUES ('scope', 'text', true, 'C'), ('key', 'text', true, 'C'), ('principal', 'text', true, 'C'),
		('state', 'text', true, 'C'), ('attempt', 'integer', true, NULL), ('token', 'uuid', true, NULL),
		('created_at', 'timestamp with time zone', true, NULL), ('claimed_at', 'timestamp with time zone', true, NULL),
		('expires_at', 'timestamp with time zone', true, NULL), ('ttl', 'interval', true, NULL),
		('on_abandon', 'text', true, 'C'), ('recovered', 'boolean', true, NULL), ('progressed', 'boolean', true, NULL),
		('lease', 'interval', false, NULL), ('lease_expires_at', 'timestamp with time zone', false, NULL),
		('finished_at', 'timestamp with time zone', false, NULL), ('fingerprint', 'bytea', false, NULL),
		('checkpoint', 'text', false, 'default'), ('checkpoint_data', 'jsonb', false, NULL),
		('response_code', 'integer', false, NULL), ('response_body', 'text', false, 'default'),
		('response_headers', 'jsonb', false, NULL), ('response_bytes', 'bytea', false, NULL),
		('sweep_at', 'timestamp with time zone', false, NULL)$$,
	'the columns of idem_record');
SELECT is(array_agg(attname::text), '{sweep_at}', 'only sweep_at is generated, and nothing else has a default')
FROM pg_attribute WHERE attrelid = 'idem_record'::regclass AND atthasdef;
SELECT is(attgenerated, 's'::"char", 'it is stored')
FROM pg_attribute WHERE attrelid = 'idem_record'::regclass AND attname = 'sweep_at';

-- constraints
SELECT set_eq(
	$$SELECT conname::text COLLATE "default", contype::text FROM pg_constraint WHERE conrelid = 'idem_record'::regclass AND contype <> 'n'$$,
	$$VALUES ('idem_record_pkey', 'p'), ('idem_record_identity_check', 'c'), ('idem_record_state_check', 'c'),
		('idem_record_lease_check', 'c'), ('idem_record_response_check', 'c'), ('idem_record_fingerprint_check', 'c')$$,
	'the constraints, by name');
SELECT ok(bool_and(convalidated AND NOT condeferrable), 'all are valid, none is deferrable')
FROM pg_constraint WHERE conrelid = 'idem_record'::regclass;

-- Impossible rows are impossible: one of each kind, each by its constraint.
CREATE FUNCTION pg_temp.refused_by(_values text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	_columns text := (SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
		WHERE attrelid = 'idem_record'::regclass AND attnum > 0 AND attgenerated = '');
	_name text;
BEGIN
	EXECUTE format('INSERT INTO idem_record (%s) SELECT %s FROM jsonb_populate_record(NULL::idem_record, $1)', _columns, _columns)
	USING '{"scope": "pgtap", "key": "k", "principal": "", "state": "processing", "attempt": 1, "token": "00000000-0000-4000-8000-000000000001",
		"created_at": "now", "claimed_at": "now", "expires_at": "tomorrow", "ttl": "1 day", "on_abandon": "unknown", "recovered": false, "progressed": false}'::jsonb || _values::jsonb;
	DELETE FROM idem_record WHERE scope = 'pgtap';
	RETURN 'accepted';
EXCEPTION WHEN check_violation THEN
	GET STACKED DIAGNOSTICS _name = CONSTRAINT_NAME;
	RETURN _name;
END $$;
SELECT is(pg_temp.refused_by('{}'), 'accepted', 'a transactional claim');
SELECT is(pg_temp.refused_by('{"lease": "1 h", "lease_expires_at": "tomorrow"}'), 'accepted', 'a leased claim');
SELECT is(array_agg(DISTINCT pg_temp.refused_by(v)), '{idem_record_identity_check}', 'identities of other lengths')
FROM (VALUES ('{"scope": ""}'), ('{"key": ""}'), ('{"key": "' || repeat('x', 256) || '"}'), ('{"principal": "' || repeat('x', 256) || '"}'), ('{"scope": "' || repeat('x', 256) || '"}')) v(v);
SELECT is(array_agg(DISTINCT pg_temp.refused_by(v)), '{idem_record_state_check}', 'other states, policies and attempts; a finish time without a finish')
FROM (VALUES ('{"state": "done", "finished_at": "now"}'), ('{"on_abandon": "never"}'), ('{"attempt": 0}'), ('{"finished_at": "now"}'), ('{"state": "succeeded"}'), ('{"state": "released"}')) v(v);
SELECT is(array_agg(DISTINCT pg_temp.refused_by(v)), '{idem_record_lease_check}', 'a lease where there is none, and none where there is one')
FROM (VALUES ('{"lease": "1 h"}'), ('{"lease_expires_at": "now"}'), ('{"state": "unknown", "finished_at": "now"}'),
	('{"state": "succeeded", "finished_at": "now", "lease_expires_at": "now"}'), ('{"state": "released", "finished_at": "now", "lease_expires_at": "now", "lease": "1 h"}')) v(v);
SELECT is(array_agg(DISTINCT pg_temp.refused_by(v)), '{idem_record_response_check}', 'a response of what is not settled, and two bodies')
FROM (VALUES ('{"response_code": 1}'), ('{"response_body": ""}'), ('{"response_headers": {}}'), ('{"response_bytes": "\\x"}'),
	('{"state": "released", "finished_at": "now", "response_code": 1}'), ('{"state": "unknown", "finished_at": "now", "lease_expires_at": "now", "response_body": "x"}'),
	('{"state": "failed", "finished_at": "now", "response_body": "x", "response_bytes": "\\x"}')) v(v);
SELECT is(array_agg(DISTINCT pg_temp.refused_by(v)), '{idem_record_fingerprint_check}', 'fingerprints of another length')
FROM (VALUES ('{"fingerprint": "\\x"}'), ('{"fingerprint": "\\x00"}'), ('{"fingerprint": "\\x' || repeat('00', 33) || '"}')) v(v);

-- indexes
SELECT is(array_agg(indexrelid::regclass::text), '{idem_record_pkey}', 'exactly one unique index')
FROM pg_index WHERE indrelid = 'idem_record'::regclass AND indisunique;
SELECT is(array_agg(pg_get_indexdef(indexrelid, n, false) ORDER BY n), '{scope,key,principal}', 'exactly the identity, in this order')
FROM pg_index, generate_series(1, indnatts) n WHERE indexrelid = 'idem_record_pkey'::regclass;
SELECT ok(indimmediate AND indpred IS NULL AND indexprs IS NULL AND indnatts = indnkeyatts
		AND (SELECT bool_and(c = '"C"'::regcollation) FROM unnest(indcollation) c), 'of whole rows, at once, byte by byte')
FROM pg_index WHERE indexrelid = 'idem_record_pkey'::regclass;
SELECT set_eq(
	$$SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid, 1, false), indnatts::int, pg_get_expr(indpred, indrelid) FROM pg_index
		WHERE indrelid = 'idem_record'::regclass AND NOT indisunique$$,
	$$VALUES ('idem_record_sweep_idx', 'sweep_at', 1, '(sweep_at IS NOT NULL)'),
		('idem_record_lease_idx', 'lease_expires_at', 1, '(lease_expires_at IS NOT NULL)')$$,
	'two partial indexes besides, for the sweep and for leased and unresolved records');
-- A finish changes state, finished_at and the response; for it to stay HOT no
-- index may be on these, nor its predicate.
SELECT is_empty(
	$$SELECT DISTINCT a.attname FROM pg_index i JOIN pg_depend d ON d.classid = 'pg_class'::regclass AND d.objid = i.indexrelid
			AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid
		JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = d.refobjsubid
		WHERE i.indrelid = 'idem_record'::regclass
			AND a.attname NOT IN ('scope', 'key', 'principal', 'sweep_at', 'lease_expires_at')$$,
	'no index is on a column that a finish changes');

SELECT is(relpersistence::text || ' ' || relkind::text || ' ' || relrowsecurity::text || ' ' || relhastriggers::text || ' ' || relhasrules::text,
	'p r false false false', 'a plain, logged table without row security, triggers or rules')
FROM pg_class WHERE oid = 'idem_record'::regclass;
SELECT ok('fillfactor=80' = ANY (reloptions), 'room for the finish on the page of its claim')
FROM pg_class WHERE oid = 'idem_record'::regclass;

-- policies
SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod), attnotnull, atthasdef FROM pg_attribute
		WHERE attrelid = 'idem_policy'::regclass AND attnum > 0 AND NOT attisdropped ORDER BY attnum$$,
	$$VALUES ('scope', 'text', true, false), ('ttl', 'interval', false, false), ('lease', 'interval', false, false),
		('wait', 'interval', false, false), ('on_abandon', 'text', false, false), ('role', 'name', false, false)$$,
	'the columns of idem_policy');
SELECT set_eq(
	$$SELECT conname::text COLLATE "default", contype::text FROM pg_constraint WHERE conrelid = 'idem_policy'::regclass AND contype <> 'n'$$,
	$$VALUES ('idem_policy_pkey', 'p'), ('idem_policy_scope_check', 'c'), ('idem_policy_ttl_check', 'c'), ('idem_policy_lease_check', 'c'),
		('idem_policy_wait_check', 'c'), ('idem_policy_on_abandon_check', 'c'), ('idem_policy_role_check', 'c')$$,
	'its constraints, by name');
SELECT is(pg_get_indexdef(indexrelid, 1, false) || ' ' || indcollation[0]::regcollation, 'scope "C"', 'one row per scope, byte by byte')
FROM pg_index WHERE indrelid = 'idem_policy'::regclass;
SELECT set_eq(
	$$SELECT tgname::text COLLATE "default", tgenabled::text, regexp_replace(pg_get_triggerdef(oid, true), ' ON .*\.?idem_policy ', ' ') FROM pg_trigger WHERE tgrelid = 'idem_policy'::regclass$$,
	$$VALUES ('idem_policy_changed', 'A', 'CREATE TRIGGER idem_policy_changed BEFORE INSERT OR DELETE OR UPDATE FOR EACH ROW EXECUTE FUNCTION idem_policy_changed()'),
		('idem_policy_truncated', 'A', 'CREATE TRIGGER idem_policy_truncated BEFORE TRUNCATE FOR EACH STATEMENT EXECUTE FUNCTION idem_policy_changed()')$$,
	'every change fires a trigger, always');
SELECT is(count(*), 0::bigint, 'it starts empty') FROM idem_policy;

-- views
SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_unresolved'::regclass AND attnum > 0 ORDER BY attnum$$,
	$$VALUES ('scope', 'text'), ('key', 'text'), ('principal', 'text'), ('state', 'text'), ('attempt', 'integer'), ('on_abandon', 'text'),
		('claimed_at', 'timestamp with time zone'), ('lease_expires_at', 'timestamp with time zone'), ('checkpoint', 'text'), ('checkpoint_data', 'jsonb')$$,
	'the columns of idem_unresolved: no token, no response');
SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_lease'::regclass AND attnum > 0 ORDER BY attnum$$,
	$$VALUES ('scope', 'text'), ('key', 'text'), ('principal', 'text'), ('state', 'text'), ('attempt', 'integer'), ('on_abandon', 'text'),
		('claimed_at', 'timestamp with time zone'), ('lease_expires_at', 'timestamp with time zone'), ('checkpoint', 'text'), ('checkpoint_data', 'jsonb'),
		('unresolved_once_lapsed', 'boolean'), ('unresolved_since', 'timestamp with time zone')$$,
	'the columns of idem_lease, which the others are made of');
SELECT set_eq(
	$$SELECT DISTINCT v.relname::text COLLATE "default" FROM pg_rewrite w JOIN pg_class v ON v.oid = w.ev_class
		JOIN pg_depend d ON d.classid = 'pg_rewrite'::regclass AND d.objid = w.oid AND d.refobjid = 'idem_lease'::regclass
		WHERE v.relname <> 'idem_lease'$$,
	$$VALUES ('idem_unresolved'), ('idem_health'), ('idem_stats')$$,
	'what needs reconciling is said in one place');
SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_health'::regclass AND attnum > 0 ORDER BY attnum$$,
	$$VALUES ('unresolved', 'bigint'), ('oldest_unresolved', 'interval'), ('leased', 'bigint'), ('oldest_expired', 'interval')$$,
	'the columns of idem_health');
SELECT is(count(*), 1::bigint, 'idem_health is one row') FROM idem_health;
SELECT is(relkind, 'v'::"char", oid::regclass || ' is a view') FROM pg_class WHERE oid IN ('idem_lease'::regclass, 'idem_unresolved'::regclass, 'idem_health'::regclass, 'idem_stats'::regclass, 'idem_report'::regclass) ORDER BY oid::regclass::text;
SELECT ok(NOT coalesce('security_invoker=true' = ANY (reloptions), false), oid::regclass || ' can be read without a right on the table')
FROM pg_class WHERE oid IN ('idem_lease'::regclass, 'idem_unresolved'::regclass, 'idem_health'::regclass, 'idem_stats'::regclass, 'idem_report'::regclass) ORDER BY oid::regclass::text;

SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_stats'::regclass AND attnum > 0 ORDER BY attnum$$,
	$$VALUES ('scope', 'text'), ('leased', 'bigint'), ('oldest_lease', 'interval'), ('abandoned', 'bigint'),
		('retryable', 'bigint'), ('unresolved', 'bigint'), ('oldest_unresolved', 'interval'), ('oldest_expired', 'interval'),
		('succeeded_estimate', 'bigint'), ('failed_estimate', 'bigint'), ('released_estimate', 'bigint'),
		('recovered_estimate', 'bigint'), ('expired_estimate', 'bigint'), ('sampled', 'double precision')$$,
	'the columns of idem_stats, with what is estimated called so');
SELECT results_eq(
	$$SELECT attname::text COLLATE "default", format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 'idem_report'::regclass AND attnum > 0 ORDER BY attnum$$,
	$$VALUES ('scope', 'text'), ('records', 'text'), ('failed %', 'numeric'), ('recovered %', 'numeric'), ('leased', 'bigint'),
		('for up to', 'interval'), ('unresolved', 'bigint'), ('expired', 'text'), ('attention', 'text')$$,
	'the columns of idem_report');
SELECT is_empty('SELECT * FROM idem_stats', 'no records, no figures');
SELECT ok('security_barrier=true' = ANY (reloptions), oid::regclass || ' applies nobody''s function to records it does not show')
FROM pg_class WHERE oid IN ('idem_unresolved'::regclass, 'idem_stats'::regclass) ORDER BY oid::regclass::text;

-- what idem_stats says of records in every state
SELECT idem_claim('s1', n::text, lease => '1 h') FROM generate_series(1, 6) n \g /dev/null
SELECT idem_once('s2', n::text) FROM generate_series(1, 3) n \g /dev/null
UPDATE idem_record SET lease_expires_at = clock_timestamp() - interval '2 h' WHERE scope = 's1' AND key IN ('1', '2', '3');
UPDATE idem_record SET on_abandon = 'retry', recovered = true WHERE scope = 's1' AND key = '1';
SELECT idem_finish('s1', key, token => token, state => CASE key WHEN '3' THEN 'unknown' WHEN '4' THEN 'failed' ELSE 'released' END)
FROM idem_record WHERE scope = 's1' AND key IN ('3', '4', '5') \g /dev/null
UPDATE idem_record SET expires_at = clock_timestamp() - interval '3 h' WHERE scope = 's2' AND key = '1';
SELECT results_eq(
	$$SELECT scope::text COLLATE "default", leased, abandoned, retryable, unresolved, succeeded_estimate, failed_estimate, released_estimate, recovered_estimate, expired_estimate, sampled FROM idem_stats$$,
	$$VALUES ('s1', 1::bigint, 2::bigint, 1::bigint, 2::bigint, 0::bigint, 1::bigint, 1::bigint, 1::bigint, 0::bigint, 1::float8), ('s2', 0, 0, 0, 0, 3, 0, 0, 0, 1, 1)$$,
	'the figures of a table that is sampled whole');
SELECT results_eq(
	$$SELECT scope::text COLLATE "default", records, unresolved, expired, attention FROM idem_report$$,
	$$VALUES ('s1', '6', 2::bigint, '0', 'reconcile, waiting for 02:00:00; 1 abandoned, to be claimed again'), ('s2', '3', 0, '1', 'sweep is behind by 03:00:00')$$,
	'the report counts each record once, and tells of those to be claimed again beside any number of unresolved ones');
SELECT results_eq(
	$$SELECT date_trunc('hour', oldest_unresolved), oldest_lease < '1 h', oldest_expired IS NULL FROM idem_stats WHERE scope = 's1'$$,
	$$VALUES ('2 h'::interval, true, true)$$,
	'ages of what is in flight');
SELECT results_eq(
	$$SELECT date_trunc('hour', oldest_expired), oldest_unresolved IS NULL, oldest_lease IS NULL FROM idem_stats WHERE scope = 's2'$$,
	$$VALUES ('3 h'::interval, true, true)$$,
	'ages of what is expired');

-- a fresh install has no rows of its own: a restore would meet them twice
SELECT is(extcondition, ARRAY['', ''], 'all rows are dumped, and none belongs to the install script')
FROM pg_extension WHERE extname = 'idempotency';
SELECT is(extconfig, ARRAY['idem_record'::regclass::oid, 'idem_policy'::regclass::oid], 'the rows of both tables are user data, which pg_dump keeps')
FROM pg_extension WHERE extname = 'idempotency';

SELECT * FROM finish();
ROLLBACK;
