--
-- No message tells a stored response, a request, a token or a fingerprint.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- The sentinels, in the record and in the calls that fail.
\set token '''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'''
CREATE TEMP TABLE failures (n serial, statement text, code text, said text);
CREATE FUNCTION pg_temp.note(_statement text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	_code text := 'none';
	_message text;
	_detail text;
	_hint text;
	_column text;
	_constraint text;
	_context text;
BEGIN
	BEGIN
		EXECUTE _statement;
	EXCEPTION WHEN OTHERS THEN
		GET STACKED DIAGNOSTICS _code = RETURNED_SQLSTATE, _message = MESSAGE_TEXT, _detail = PG_EXCEPTION_DETAIL,
			_hint = PG_EXCEPTION_HINT, _column = COLUMN_NAME, _constraint = CONSTRAINT_NAME, _context = PG_EXCEPTION_CONTEXT;
	END;
	-- the context repeats the statement, which is the caller's
	INSERT INTO failures (statement, code, said)
	VALUES (_statement, _code, concat_ws(' | ', _message, _detail, _hint, _column, _constraint, replace(_context, _statement, '')));
END $$;

-- settled records of each kind of answer, and a live one
BEGIN;
SELECT outcome FROM idem_claim('secrecy', 'a', request => '{"card": "sentinel-4111"}');
SELECT idem_finish('secrecy', 'a', response_code => 200, response_body => 'sentinel body', response_headers => '{"Set-Cookie": "sentinel"}');
COMMIT;
SELECT outcome FROM idem_claim('secrecy', 'b', request => '"sentinel"', lease => '1 hour', claim_token => :token);
SELECT idem_checkpoint('secrecy', 'b', token => :token, checkpoint => 'sentinel', checkpoint_data => '"sentinel"') IS NOT NULL AS recorded;
SELECT outcome FROM idem_claim('secrecy', 'c', request => '"sentinel"', lease => '1 hour', claim_token => :token);
SELECT idem_finish('secrecy', 'c', token => :token, state => 'released');

-- every error of ours that is near one of them
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''a'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''gone'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', token => ''00000000-0000-4000-8000-000000000000'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''c'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', state => ''unknown'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_body => ''sentinel'', response_bytes => ''sentinel'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''c'', request => ''"sentinel"'', lease => ''1 hour'', claim_token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''c'', request => ''"sentinel"'', claim_token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''a'', request => ''"sentinel"'', fingerprint => ''sentinel'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''a'', fingerprint => ''sentinel'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''a'', ''{"card": "sentinel"}'')');
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', repeat(''sentinel'', 100))');
SELECT pg_temp.note('SELECT (idem_claim(''secrecy'', ''d'', request => ''"sentinel"'', lease => ''1 hour'')).*');
SELECT pg_temp.note('SELECT idem_extend(''secrecy'', ''a'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'')');
SELECT pg_temp.note('SELECT idem_extend(''secrecy'', ''c'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'')');
SELECT pg_temp.note('SELECT idem_checkpoint(''secrecy'', ''a'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', checkpoint => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_assert(''secrecy'', ''a'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'')');
SELECT pg_temp.note('SELECT idem_once(''secrecy'', ''b'')');
SELECT pg_temp.note('SELECT * FROM idem_execute(''secrecy'', ''e'', request => ''"sentinel"'', command => ''SELECT $1, 1, 1'')');
SELECT pg_temp.note('SELECT * FROM idem_execute(''secrecy'', ''e'', request => ''"sentinel"'', command => ''SELECT $1 FROM generate_series(1, 2)'')');
SELECT pg_temp.note('SELECT * FROM idem_resolve(''secrecy'', ''b'', state => ''released'', response_body => ''sentinel'')');
SET idempotency.max_response = '5';
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_body => ''sentinel'')');
SELECT pg_temp.note('SELECT idem_finish(''secrecy'', ''b'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', response_headers => ''"sentinel"'')');
SELECT pg_temp.note('SELECT idem_checkpoint(''secrecy'', ''b'', token => ''5ec5ec5e-c5ec-45ec-85ec-5ec5ec5ec5ec'', checkpoint => ''sentinel'')');
SELECT pg_temp.note('SELECT * FROM idem_execute(''secrecy'', ''e'', request => ''"sentinel"'', command => ''SELECT $1'')');
RESET idempotency.max_response;
-- a table that is not what it should be
BEGIN;
ALTER TABLE idem_record ENABLE ROW LEVEL SECURITY;
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''a'', request => ''"sentinel"'')');
ALTER TABLE idem_record DISABLE ROW LEVEL SECURITY;
COMMIT;
-- a constraint of the right name that the row violates
BEGIN;
ALTER TABLE idem_record DROP CONSTRAINT idem_record_fingerprint_check;
ALTER TABLE idem_record ADD CONSTRAINT idem_record_fingerprint_check
	CHECK (octet_length(fingerprint) = 31) NOT VALID;
SELECT pg_temp.note('SELECT * FROM idem_claim(''secrecy'', ''d'', request => ''"sentinel"'', lease => ''1 hour'')');
ALTER TABLE idem_record DROP CONSTRAINT idem_record_fingerprint_check;
ALTER TABLE idem_record ADD CONSTRAINT idem_record_fingerprint_check
	CHECK (octet_length(fingerprint) = 32);
COMMIT;

-- all of them failed, and none told
SELECT count(*), count(*) FILTER (WHERE code = 'none') AS succeeded FROM failures;
SELECT n, statement, code FROM failures
WHERE said ~* 'sentinel|5ec5ec5e|4111'
	OR said ~ left(encode(idem_fingerprint('"sentinel"'), 'hex'), 20)
	OR said ~ left(encode(idem_fingerprint('{"card": "sentinel-4111"}'), 'hex'), 20)
	OR said ~ '[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-' ORDER BY n;
SELECT code, count(*) FROM failures GROUP BY code ORDER BY code;

-- nor does a mismatch, or anybody else's answer, show the token or the body
SELECT count(*) FROM (
	SELECT to_jsonb(c)::text AS answer FROM idem_claim('secrecy', 'a', request => '1') c
	UNION ALL SELECT to_jsonb(c)::text FROM idem_claim('secrecy', 'b', request => '1') c
	UNION ALL SELECT to_jsonb(c)::text FROM idem_claim('secrecy', 'b', request => '"sentinel"') c
	UNION ALL SELECT to_jsonb(c)::text FROM idem_lookup('secrecy', 'b') c
	UNION ALL SELECT to_jsonb(c)::text FROM idem_takeover('secrecy', 'b') c) a
WHERE answer ~* 'sentinel|5ec5ec5e';
SELECT token IS NULL AS no_token FROM idem_claim('secrecy', 'a', request => '{"card": "sentinel-4111"}');

-- nor the statement at commit
BEGIN;
SELECT outcome FROM idem_claim('secrecy', 'f', 'sentinel principal', request => '"sentinel"');
COMMIT;

DELETE FROM idem_record WHERE scope = 'secrecy';
