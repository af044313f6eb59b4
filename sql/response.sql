--
-- Responses: stored and sent back byte for byte, within a limit.
--
\set ECHO none
\set helpers `echo "${PG_ABS_SRCDIR:-.}/sql/observe.psql"`
\i :helpers
\set ECHO all
\t on
\pset format unaligned

-- What goes in comes out, through claim and lookup.
CREATE TEMP TABLE bodies (name text, body text, bytes bytea);
INSERT INTO bodies (name, body) VALUES
	('empty', ''), ('blanks', E'  \t\r\n '), ('quotes', $q$'";\"''\\$q$), ('json', '{"b":1.0,  "a":"\u00e9","b":2}'),
	('emoji', E'\xf0\x9f\xa7\xbe caf\xc3\xa9 \xe2\x80\x8f\xd7\xa9'), ('controls', E'\x01\x02\x1f\x7f'), ('null word', 'NULL'), ('array', '{}'),
	('5 MB', repeat('0123456789abcdef', 327680)),
	('5 MB, random', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 163840) n)),
	('100 kB, random', (SELECT string_agg(md5(n::text), '') FROM generate_series(1, 3200) n));
INSERT INTO bodies (name, bytes) VALUES
	('no bytes', ''), ('a null byte', '\x00'), ('all bytes', (SELECT string_agg(set_byte('\x00', 0, n), '' ORDER BY n) FROM generate_series(0, 255) n)),
	('5 MB of bytes', decode(repeat('00ff', 2621440), 'hex')),
	('5 MB of random bytes', (SELECT string_agg(sha256(n::text::bytea), '') FROM generate_series(1, 163840) n));
CREATE FUNCTION pg_temp.there_and_back(name text, body text, bytes bytea) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
	claimed record;
	looked record;
BEGIN
	PERFORM * FROM idem_claim('response', name);
	PERFORM idem_finish('response', name, response_body => body, response_bytes => bytes);
	SELECT * INTO claimed FROM idem_claim('response', name);
	SELECT * INTO looked FROM idem_lookup('response', name);
	RETURN CASE WHEN (claimed.response_body, claimed.response_bytes) IS NOT DISTINCT FROM (body, bytes)
		AND (looked.response_body, looked.response_bytes) IS NOT DISTINCT FROM (body, bytes) THEN 'equal' ELSE 'different' END;
END $$;
SELECT b.name, coalesce(octet_length(b.body), octet_length(b.bytes)) AS size, pg_temp.there_and_back(b.name, b.body, b.bytes) FROM bodies b;
-- later, too, and with another statement
SELECT count(*) FROM bodies b, LATERAL idem_claim('response', b.name) c
WHERE (c.response_body, c.response_bytes) IS NOT DISTINCT FROM (b.body, b.bytes);
-- what is stored out of line can be read while the record changes
BEGIN;
CREATE TEMP TABLE fetched AS SELECT * FROM idem_claim('response', '5 MB, random');
SELECT idem_forget('response', '5 MB, random');
SELECT f.response_body = b.body FROM fetched f, bodies b WHERE b.name = '5 MB, random';
ROLLBACK;
-- an empty body is not a missing one
SELECT response_body IS NULL AS body, response_bytes IS NULL AS bytes FROM idem_lookup('response', 'empty');
SELECT response_body IS NULL AS body, response_bytes IS NULL AS bytes FROM idem_lookup('response', 'no bytes');

-- headers and codes
CREATE FUNCTION pg_temp.stored(_code int, _headers jsonb) RETURNS TABLE (response_code int, response_headers jsonb) LANGUAGE plpgsql AS $$
BEGIN
	PERFORM * FROM idem_claim('response', 'headers');
	PERFORM idem_finish('response', 'headers', response_code => _code, response_headers => _headers);
	RETURN QUERY SELECT l.response_code, l.response_headers FROM idem_claim('response', 'headers') l;
	PERFORM idem_forget('response', 'headers');
END $$;
SELECT * FROM pg_temp.stored(200, '{"Content-Type": "text/plain", "Set-Cookie": ["a=1", "b=2"], "n": 1.50}');
SELECT * FROM pg_temp.stored(-2147483648, 'null');
SELECT * FROM pg_temp.stored(2147483647, '[]');
SELECT * FROM pg_temp.stored(0, '""');
SELECT * FROM pg_temp.stored(NULL, NULL);

-- The limit counts code, headers and body together; at it is stored, past it
-- is refused, and the claim is still owned.
SET idempotency.max_response = '100';
CREATE FUNCTION pg_temp.too_large(arguments text) RETURNS text LANGUAGE sql AS $$
	SELECT concat_ws(': ', f.code, f.message) FROM pg_temp.failing(format('SELECT idem_finish(''response'', ''limit'', %s)', arguments)) f
$$;
BEGIN;
SELECT outcome FROM idem_claim('response', 'limit');
SELECT pg_temp.too_large('response_body => repeat(''x'', 101)');
SELECT pg_temp.too_large('response_bytes => decode(repeat(''00'', 101), ''hex'')');
SELECT pg_temp.too_large('response_body => repeat(''x'', 97), response_code => 200');
SELECT pg_temp.too_large('response_body => repeat(E''\xc3\xa9'', 51)');
SELECT pg_temp.too_large('response_body => repeat(''x'', 99), response_headers => ''{}''');
SELECT pg_temp.too_large('response_headers => to_jsonb(repeat(''x'', 99))');
-- as text, however small in binary
SELECT pg_temp.too_large('response_headers => ''1e100000''');
SELECT pg_temp.too_large('response_headers => ''{"n": 1e130000, "m": [1e-16000]}''');
SELECT pg_temp.too_large('response_headers => ''1e100''');
SELECT pg_temp.too_large('state => ''failed'', response_body => repeat(''x'', 1000000)');
SELECT outcome FROM idem_claim('response', 'limit');
SAVEPOINT s;
SELECT idem_finish('response', 'limit', response_body => repeat('x', 101));
\echo :LAST_ERROR_SQLSTATE
ROLLBACK TO s;
SELECT idem_finish('response', 'limit', response_body => repeat('x', 94), response_code => 200, response_headers => '{}');
COMMIT;
SELECT length(response_body), response_code, response_headers FROM idem_lookup('response', 'limit');
-- 100 bytes exactly, of each kind
SELECT pg_temp.there_and_back('at the limit', repeat('x', 100), NULL), pg_temp.there_and_back('at the limit, bytes', NULL, decode(repeat('00', 100), 'hex'));
SELECT length(response_headers::text) FROM pg_temp.stored(NULL, to_jsonb(repeat('x', 98)));

-- resolve and execute have the same limit; a leased claim is still owned, too
SELECT token FROM idem_claim('response', 'leased', lease => '1 hour') \gset
SELECT idem_finish('response', 'leased', token => :'token', response_body => repeat('x', 101));
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_resolve(''response'', ''leased'', state => ''failed'', force => true, response_body => repeat(''x'', 101))') f;
SELECT f.code FROM pg_temp.failing('SELECT * FROM idem_execute(''response'', ''run'', command => ''SELECT repeat(''''x'''', 101)'')') f;
SELECT outcome FROM idem_lookup('response', 'leased') UNION ALL SELECT outcome FROM idem_lookup('response', 'run');
SELECT idem_finish('response', 'leased', token => :'token', response_body => repeat('x', 100));

-- a limit that was lowered since does not reach what is stored
SET idempotency.max_response = 0;
SELECT length(response_body) FROM idem_claim('response', 'leased');
SELECT pg_temp.there_and_back('nothing', NULL, NULL), pg_temp.there_and_back('nothing, too', '', NULL);
SELECT f.code FROM pg_temp.failing('SELECT pg_temp.there_and_back(''something'', ''x'', NULL)') f;
RESET idempotency.max_response;

-- the checkpoint and its data are kept as they are, too
SELECT token FROM idem_claim('response', 'checkpoint', lease => '1 hour', on_abandon => 'retry') \gset
SELECT idem_checkpoint('response', 'checkpoint', token => :'token', checkpoint => E'\x01 \' \xf0\x9f\xa7\xbe', checkpoint_data => to_jsonb(b.body)) IS NOT NULL AS recorded FROM bodies b WHERE name = '100 kB, random';
SELECT pg_temp.pass('response', 'checkpoint', '1 hour');
SELECT c.outcome, c.checkpoint = E'\x01 \' \xf0\x9f\xa7\xbe' AS checkpoint, c.checkpoint_data #>> '{}' = b.body AS data FROM idem_claim('response', 'checkpoint', lease => '1 hour') c, bodies b WHERE name = '100 kB, random';
SELECT idem_finish('response', 'checkpoint', token => token, response_body => b.body) FROM idem_record, bodies b WHERE (scope, key) = ('response', 'checkpoint') AND name = '5 MB';
SELECT r.checkpoint_data #>> '{}' = b.body AS data, length(r.response_body) FROM idem_record r, bodies b WHERE (scope, key) = ('response', 'checkpoint') AND name = '100 kB, random';

DELETE FROM idem_record WHERE scope = 'response';
