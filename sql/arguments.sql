--
-- Bad arguments: refused with 22023 (or the type's own error), the argument
-- named in the message and in the column field of the error, nothing written,
-- and the transaction usable.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\pset format unaligned

-- one transaction for all of them, so that any of them could spoil it
BEGIN;
SELECT token FROM idem_claim('arguments', 'live', lease => '1 hour') \gset
CREATE TEMP TABLE bad (n serial, statement text);

-- the identity, in every function
INSERT INTO bad (statement) VALUES
	($$SELECT * FROM idem_claim(NULL, 'k')$$),
	($$SELECT * FROM idem_claim('', 'k')$$),
	($$SELECT * FROM idem_claim('arguments', NULL)$$),
	($$SELECT * FROM idem_claim('arguments', '')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_lookup(NULL, 'k')$$),
	($$SELECT * FROM idem_lookup('', 'k')$$),
	($$SELECT * FROM idem_lookup('arguments', NULL)$$),
	($$SELECT * FROM idem_lookup('arguments', '')$$),
	($$SELECT * FROM idem_lookup('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_finish(NULL, 'k')$$),
	($$SELECT * FROM idem_finish('', 'k')$$),
	($$SELECT * FROM idem_finish('arguments', NULL)$$),
	($$SELECT * FROM idem_finish('arguments', '')$$),
	($$SELECT * FROM idem_finish('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_extend(NULL, 'k')$$),
	($$SELECT * FROM idem_extend('', 'k')$$),
	($$SELECT * FROM idem_extend('arguments', NULL)$$),
	($$SELECT * FROM idem_extend('arguments', '')$$),
	($$SELECT * FROM idem_extend('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_checkpoint(NULL, 'k', checkpoint => 'c')$$),
	($$SELECT * FROM idem_checkpoint('', 'k', checkpoint => 'c')$$),
	($$SELECT * FROM idem_checkpoint('arguments', NULL, checkpoint => 'c')$$),
	($$SELECT * FROM idem_checkpoint('arguments', '', checkpoint => 'c')$$),
	($$SELECT * FROM idem_checkpoint('arguments', 'k', NULL, checkpoint => 'c')$$),
	($$SELECT * FROM idem_assert(NULL, 'k')$$),
	($$SELECT * FROM idem_assert('', 'k')$$),
	($$SELECT * FROM idem_assert('arguments', NULL)$$),
	($$SELECT * FROM idem_assert('arguments', '')$$),
	($$SELECT * FROM idem_assert('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_takeover(NULL, 'k')$$),
	($$SELECT * FROM idem_takeover('', 'k')$$),
	($$SELECT * FROM idem_takeover('arguments', NULL)$$),
	($$SELECT * FROM idem_takeover('arguments', '')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_resolve(NULL, 'k', state => 'failed')$$),
	($$SELECT * FROM idem_resolve('', 'k', state => 'failed')$$),
	($$SELECT * FROM idem_resolve('arguments', NULL, state => 'failed')$$),
	($$SELECT * FROM idem_resolve('arguments', '', state => 'failed')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', NULL, state => 'failed')$$),
	($$SELECT * FROM idem_forget(NULL, 'k')$$),
	($$SELECT * FROM idem_forget('', 'k')$$),
	($$SELECT * FROM idem_forget('arguments', NULL)$$),
	($$SELECT * FROM idem_forget('arguments', '')$$),
	($$SELECT * FROM idem_forget('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_once(NULL, 'k')$$),
	($$SELECT * FROM idem_once('', 'k')$$),
	($$SELECT * FROM idem_once('arguments', NULL)$$),
	($$SELECT * FROM idem_once('arguments', '')$$),
	($$SELECT * FROM idem_once('arguments', 'k', NULL)$$),
	($$SELECT * FROM idem_execute(NULL, 'k', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_execute('', 'k', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_execute('arguments', NULL, command => 'SELECT 1')$$),
	($$SELECT * FROM idem_execute('arguments', '', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', NULL, command => 'SELECT 1')$$),
	($$SELECT idem_once_batch(NULL, '{k}')$$),
	($$SELECT idem_once_batch('', '{k}')$$),
	($$SELECT idem_once_batch('', '{}')$$),
	($$SELECT idem_once_batch('arguments', '{k}', NULL)$$),
	($$SELECT idem_once_batch('arguments', '{k}', '{"a": 1}')$$);

-- its limits
INSERT INTO bad (statement) VALUES
	($$SELECT * FROM idem_claim(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_claim('arguments', repeat('x', 256))$$),
	($$SELECT * FROM idem_claim('arguments', 'k', repeat('x', 256))$$),
	($$SELECT * FROM idem_claim('arguments', repeat(E'\xc3\xa9', 128))$$),
	($$SELECT * FROM idem_claim('a'||chr(1), 'k')$$),
	($$SELECT * FROM idem_claim('arguments', 'k'||chr(31))$$),
	($$SELECT * FROM idem_claim('arguments', 'k', chr(127))$$),
	($$SELECT * FROM idem_claim('arguments', E'a\tb')$$),
	($$SELECT * FROM idem_claim('arguments', E'a\n')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', '{"amount": 1}')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', '[1]')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', '{')$$),
	($$SELECT * FROM idem_lookup(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_finish(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_forget(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_once(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_execute(repeat('x', 256), 'k', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_takeover(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_extend(repeat('x', 256), 'k')$$),
	($$SELECT * FROM idem_lookup('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_finish('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_forget('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_once('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_execute('arguments', 'a'||chr(127), command => 'SELECT 1')$$),
	($$SELECT * FROM idem_takeover('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_extend('arguments', 'a'||chr(127))$$),
	($$SELECT * FROM idem_lookup('arguments', 'k', '[]')$$),
	($$SELECT * FROM idem_finish('arguments', 'k', '[]')$$),
	($$SELECT * FROM idem_forget('arguments', 'k', '[]')$$),
	($$SELECT * FROM idem_once('arguments', 'k', '[]')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', '[]', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', '[]')$$),
	($$SELECT * FROM idem_extend('arguments', 'k', '[]')$$);

-- times
INSERT INTO bad (statement) VALUES
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '0')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '0')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '-1 s')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '-1 s')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '1 month -31 days')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '1 month -31 days')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '1100 years')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '1100 years')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '170000000 years')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '170000000 years')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '-170000000 years')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '-170000000 years')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', ttl => '1 yonk')$$),
	($$SELECT idem_finish('arguments', 'k', token => gen_random_uuid(), ttl => '1 yonk')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', lease => '-1 us')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', wait => '-1 us')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', lease => '-1 us')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', wait => '-1 us')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', wait => '-1 us', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', lease => '1 day -25 hours')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', wait => '1 day -25 hours')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', lease => '1 day -25 hours')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', wait => '1 day -25 hours')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', wait => '1 day -25 hours', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', lease => '1100 years')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', wait => '1100 years')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', lease => '1100 years')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', wait => '1100 years')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', wait => '1100 years', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', ttl => '0', state => 'failed')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', ttl => '-1 h', state => 'failed')$$),
	($$SELECT * FROM idem_once('arguments', 'k', ttl => '0')$$),
	($$SELECT * FROM idem_once('arguments', 'k', ttl => '-1 h')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', ttl => '0', command => 'SELECT 1')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', ttl => '-1 h', command => 'SELECT 1')$$),
	($$SELECT idem_once_batch('arguments', '{k}', ttl => '0')$$),
	($$SELECT idem_extend('arguments', 'live', token => gen_random_uuid(), lease => '0')$$),
	($$SELECT idem_checkpoint('arguments', 'live', token => gen_random_uuid(), checkpoint => 'c', lease => '0')$$),
	($$SELECT idem_extend('arguments', 'live', token => gen_random_uuid(), lease => '-1 s')$$),
	($$SELECT idem_checkpoint('arguments', 'live', token => gen_random_uuid(), checkpoint => 'c', lease => '-1 s')$$),
	($$SELECT idem_extend('arguments', 'live', token => gen_random_uuid(), lease => '1100 years')$$),
	($$SELECT idem_checkpoint('arguments', 'live', token => gen_random_uuid(), checkpoint => 'c', lease => '1100 years')$$);

-- words and flags
INSERT INTO bad (statement) VALUES
	($$SELECT * FROM idem_claim('arguments', 'k', on_abandon => 'Retry')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', on_abandon => '')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', on_abandon => 'unknown ')$$),
	($$SELECT idem_checkpoint('arguments', 'live', token => gen_random_uuid(), checkpoint => 'c', on_abandon => 'never')$$),
	($$SELECT idem_checkpoint('arguments', 'live', token => gen_random_uuid())$$),
	($$SELECT idem_finish('arguments', 'k', state => NULL)$$),
	($$SELECT idem_finish('arguments', 'k', state => 'processing')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'done')$$),
	($$SELECT idem_finish('arguments', 'k', state => '')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'SUCCEEDED')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => NULL)$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'unknown')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'processing')$$),
	($$SELECT * FROM idem_takeover('arguments', 'k', force => NULL)$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'failed', force => NULL)$$);

-- responses
INSERT INTO bad (statement) VALUES
	($$SELECT idem_finish('arguments', 'k', state => 'released', response_code => 200)$$),
	($$SELECT idem_finish('arguments', 'k', state => 'released', response_body => 'x')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'released', response_headers => '{}')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'released', response_bytes => '\x00')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'unknown', response_code => 200)$$),
	($$SELECT idem_finish('arguments', 'k', state => 'unknown', response_body => 'x')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'unknown', response_headers => '{}')$$),
	($$SELECT idem_finish('arguments', 'k', state => 'unknown', response_bytes => '\x00')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'released', response_code => 200)$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'released', response_body => '')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'released', response_headers => 'null')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'released', response_bytes => '')$$),
	($$SELECT idem_finish('arguments', 'k', response_body => '', response_bytes => '')$$),
	($$SELECT * FROM idem_resolve('arguments', 'k', state => 'succeeded', response_body => 'x', response_bytes => 'x')$$);

-- fingerprints, requests, tokens
INSERT INTO bad (statement) VALUES
	($$SELECT * FROM idem_claim('arguments', 'k', request => '1', fingerprint => sha256('1'))$$),
	($$SELECT * FROM idem_claim('arguments', 'k', fingerprint => '')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', fingerprint => '\x00')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', fingerprint => decode(repeat('00', 31), 'hex'))$$),
	($$SELECT * FROM idem_claim('arguments', 'k', fingerprint => decode(repeat('00', 33), 'hex'))$$),
	($$SELECT * FROM idem_claim('arguments', 'k', request => '{')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', fingerprint => '\x0')$$),
	($$SELECT * FROM idem_claim('arguments', 'k', claim_token => gen_random_uuid())$$),
	($$SELECT * FROM idem_claim('arguments', 'k', lease => '1 h', claim_token => 'x')$$),
	($$SELECT idem_finish('arguments', 'never seen')$$),
	($$SELECT idem_extend('arguments', 'never seen')$$),
	($$SELECT idem_checkpoint('arguments', 'never seen', checkpoint => 'c')$$),
	($$SELECT idem_assert('arguments', 'never seen')$$);

-- the rest
INSERT INTO bad (statement) VALUES
	($$SELECT idem_sweep(0)$$),
	($$SELECT idem_sweep(-1)$$),
	($$SELECT idem_sweep(NULL)$$),
	($$CALL idem_sweep_all(0)$$),
	($$CALL idem_sweep_all(NULL)$$),
	($$CALL idem_sweep_all(pause => '-1 s')$$),
	($$CALL idem_sweep_all(pause => NULL)$$),
	($$SELECT idem_once_batch('arguments', NULL)$$),
	($$SELECT idem_once_batch('arguments', '{a,NULL}')$$),
	($$SELECT idem_once_batch('arguments', '{a,""}')$$),
	($$SELECT idem_once_batch('arguments', ARRAY['a', repeat('x', 256)])$$),
	($$SELECT idem_once_batch('arguments', ARRAY['a', E'b\r'])$$),
	($$SELECT * FROM idem_execute('arguments', 'k')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', command => NULL)$$),
	($$SELECT * FROM idem_execute('arguments', 'k', command => '')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', command => '-- nothing')$$),
	($$SELECT * FROM idem_execute('arguments', 'k', command => 'SELECT 1; SELECT 2')$$),
	($$SELECT idem_grant(NULL)$$),
	($$SELECT idem_grant('-')$$),
	($$SELECT idem_revoke(NULL)$$),
	($$SELECT idem_grant(current_user::regrole, NULL)$$),
	($$SELECT idem_grant(current_user::regrole, 'everything')$$),
	($$SELECT idem_revoke(current_user::regrole, 'Client')$$);

SELECT b.statement, f.code, f.argument, f.message, f.hint
FROM bad b, LATERAL pg_temp.failing(b.statement) f ORDER BY b.n;

-- every one failed, named its argument, and left nothing behind
SELECT b.statement, f.code
FROM bad b, LATERAL pg_temp.failing(b.statement) f
WHERE (f.code, f.argument IS NOT NULL) IS DISTINCT FROM ('22023', true)
	OR f.message NOT LIKE f.argument || ' %' OR f.hint = ''
ORDER BY b.n;
SELECT scope, key, state FROM idem_record WHERE scope <> 'arguments' OR key <> 'live';
SELECT idem_finish('arguments', 'live', token => :'token');
COMMIT;

-- 200,000 bytes, compressible and random, from a table so that they are stored
-- out of line; 2,700 and 256 bytes
CREATE TEMP TABLE long_key (n int, key text);
INSERT INTO long_key
	SELECT 1, repeat('a', 256) UNION ALL SELECT 2, repeat('a', 2700) UNION ALL SELECT 3, repeat('a', 200000)
	UNION ALL SELECT 4, string_agg(md5(n::text), '' ORDER BY n) FROM generate_series(1, 85) n
	UNION ALL SELECT 5, string_agg(md5(n::text), '' ORDER BY n) FROM generate_series(1, 6250) n;
SELECT k.n, length(k.key), f.code, f.argument, f.message
FROM long_key k, LATERAL pg_temp.failing(format('SELECT * FROM idem_claim(''arguments'', (SELECT key FROM long_key WHERE n = %s), lease => ''1 hour'')', k.n)) f
ORDER BY k.n;
SELECT count(*) FROM idem_record WHERE scope = 'arguments';

-- the limits themselves are accepted
SELECT c.outcome, octet_length(k.key)
FROM (SELECT string_agg(md5(n::text), '' ORDER BY n) || repeat('k', 31) FROM generate_series(1, 7) n) AS k(key),
	LATERAL idem_claim(repeat('s', 255), k.key, repeat('p', 255), lease => '1 hour') c;
SELECT octet_length(scope), octet_length(key), octet_length(principal) FROM idem_record WHERE scope = repeat('s', 255);
SELECT outcome FROM idem_claim('arguments', 'long', ttl => '1000 years', lease => '1000 years');
SELECT outcome FROM idem_lookup('arguments', 'long');

DELETE FROM idem_record WHERE scope IN ('arguments', repeat('s', 255));
