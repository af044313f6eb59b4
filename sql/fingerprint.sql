--
-- The fingerprint of a request.
--

-- Golden values.  Stored fingerprints depend on them: none may ever change.
-- The form is given too, after its "IDEM" 0x01, so that a difference can be
-- read; both columns come from test/fingerprint/canonical.py.
CREATE TEMP TABLE golden (doc text, form text, fingerprint text);
INSERT INTO golden VALUES
('null',
 '6e',
 '7f8fe9b116e1bf6047719f5f01ca18a006bf0e3b71083c6585c04665b818a46f'),
('true',
 '74',
 '04bc7993857bfb87d13e14a549ab9f86c137952eb88bf3af99443594ad1ea6e0'),
('false',
 '66',
 'd6e8f8b765cc2b3ad02c14c585593fafc161143fa9862913a5963dfa12c96e68'),
('""',
 '2200000000',
 '863102436f72114a5e1963d21b7d9003bbf5bcee44e8fc94e415e647616eb72d'),
('"idempotency"',
 '220000000b6964656d706f74656e6379',
 '6053c469e4a1b29b7412fa14f23bc85933b4591f4243dbf66e712b0b9e9654a8'),
('"a\u0022\\\n"',
 '220000000461225c0a',
 'c7127b90a7010f34fc6d18eb3389842294bd28dd3e50bcdd211c67a282467756'),
('0',
 '23000000000000',
 'cec7ac305f1fd8550958f1f3b93d192a775a95e67dba901efb0da887b56375f9'),
('1',
 '230001000000000001',
 '0aa78d927adf3dcc8dea75d12402d89d00a77b707e0fe4e500b4e566bab70303'),
('-1',
 '230001000040000001',
 '86606c56a4e1d40b09c24b1ab9f70bc3e11200fe8c50ef2980e297002defbfff'),
('10000',
 '230001000100000001',
 '139d390f58e44c793bc7c80abc9cd1c3879d2016856ef35189306fc6e1714ea6'),
('12.5',
 '23000200000000000c1388',
 '006700fb6d2c9028b6ccc436e0a2c63bfe03a35e51a04ceb8e3b331909d81418'),
('-0.001',
 '230001ffff4000000a',
 '9fd3a4aec91cff31a47f928475c5ea6d3bcb581974543b54f06bf087318320d9'),
('9007199254740993',
 '23000400030000232f07c8156203e1',
 '36f53897a4b4829734ff05db05d36d2bc59ac6f5a9462a8f441e7e8b7c34d93f'),
('123456789012345678901234567890.00001234',
 '23000a00070000000c0d801ed204d2162e23340d801ed2000004d2',
 '995077c8c9486f9f0d74a62b312511e364ec21f1f6954c6b325f38ec62991a5b'),
('1e130000',
 '2300017ef400000001',
 '7f0986d388816d114021ae43d1ca0f41b183f6b5a05a8936091bc354bd9753f5'),
('1e-16383',
 '230001f0000000000a',
 '7db9c97a1e6368a89691f2293434b53796cb9d482dc5cf2664fec7008614bcfb'),
('[]',
 '5b00000000',
 '6d983306ff7ca9b63621650dbcb745ea01ddef4b185306ef727ceb2721bfe167'),
('{}',
 '7b00000000',
 'db8d13d2fe519a84660e0511a429981ae9c32ac8dc58db36eb17990ff6f151ce'),
('[1]',
 '5b00000001230001000000000001',
 '530a0b14900b0f912f329f31c88221d15764fc39cb857423864f6d20d804a6f2'),
('[[], {}, [null]]',
 '5b000000035b000000007b000000005b000000016e',
 '67a1d8836c1110e2a81242fa8079ce4fd90fc36560768f6ec381c3ece7872412'),
('{"": ""}',
 '7b00000001000000002200000000',
 'fa42a504987d9dd79394517e81f2ca8fe619da522419d8759faf4e7bc7b9913b'),
('{"b": 1, "a": 2, "aa": 3, "B": 4}',
 '7b00000004000000014223000100000000000400000001612300010000000000020000000162230001000000000001000000026161230001000000000003',
 'c5cd5142f6964ed19824a51b0a31c7bfd5ca61b7c94372098077a9c9b5255c4d'),
('{"amount": 12.5, "to": ["x", null]}',
 '7b0000000200000002746f5b000000022200000001786e00000006616d6f756e7423000200000000000c1388',
 '92d1941f6e45778baac30fd50f627d2886fa943136338060104ebc7eeb3c2313');

SELECT doc, fingerprint, encode(idem_fingerprint(doc::jsonb), 'hex') AS got,
       encode(sha256(decode('4944454d01' || form, 'hex')), 'hex') AS of_form
FROM golden
WHERE fingerprint IS DISTINCT FROM encode(idem_fingerprint(doc::jsonb), 'hex')
   OR fingerprint IS DISTINCT FROM encode(sha256(decode('4944454d01' || form, 'hex')), 'hex');
SELECT count(*) AS pinned FROM golden;
-- One of them where the eye can see it.
SELECT idem_fingerprint('{"amount": 12.5, "to": ["x", null]}');

-- Requests that are the same.
CREATE TEMP TABLE same (a text, b text);
INSERT INTO same VALUES
('1', '1.0'), ('1', '1e0'), ('1', '100e-2'), ('1', '0.1e1'),
('100', '1e2'), ('10000', '1e4'), ('100000', '1.0E+5'), ('0.001', '0.0010'),
('0.00001', '1e-5'), ('12.5', '12.50000000'), ('-3.0', '-3'),
('0', '-0'), ('0', '0.000'), ('0', '-0.0e5'), ('0', '0e16000'),
('1e130000', '10e129999'), ('1e-16383', '0.1e-16382'),
('[1]', '[1.00]'), ('{"n": 1}', '{"n": 10e-1}'),
('{"a": 1, "b": 2}', '{"b": 2, "a": 1}'),
('{"a": 1, "bb": 2, "c": 3}', '{"bb": 2, "c": 3, "a": 1}'),
('{"x": {"a": 1, "b": [{"c": 1, "d": 2}]}}', '{"x": {"b": [{"d": 2, "c": 1}], "a": 1}}'),
('{"a": 1, "a": 2}', '{"a": 2}'), ('{"a": {"b": 1}, "a": 2}', '{"a": 2}'),
('{"a":[1,2]}', E' {\n\t"a" : [ 1 , 2 ] }\r\n'),
('"A/\n"', '"\u0041\/\u000a"'), ('{"k": 1}', '{"\u006b": 1}');
SELECT * FROM same
WHERE idem_fingerprint(a::jsonb) IS DISTINCT FROM idem_fingerprint(b::jsonb);
SELECT count(*) AS pairs FROM same;

-- Requests all of which differ, each from each.
CREATE TEMP TABLE different (doc text);
INSERT INTO different VALUES
('null'), ('true'), ('false'), ('""'), ('[]'), ('{}'),
('"null"'), ('"true"'), ('"[]"'), ('"{}"'), ('" "'), ('"\u0001"'),
('[null]'), ('[true]'), ('[""]'), ('[[]]'), ('[{}]'), ('[[[]]]'), ('[[], []]'),
('[[[], []]]'), ('[[[]], []]'), ('[[], [[]]]'), ('[[[[]]]]'),
('0'), ('1'), ('-1'), ('"0"'), ('"1"'), ('[0]'), ('[1]'), ('[[1]]'), ('["1"]'),
('10'), ('100'), ('1000'), ('10000'), ('100000'), ('0.1'), ('0.01'), ('0.0001'),
('0.00001'), ('1.0001'), ('10001'), ('100010000'), ('1e130000'), ('1e130001'),
('-1e130000'), ('1e-16383'), ('1e-16382'), ('1.5'), ('-1.5'), ('15'),
('9007199254740992'), ('9007199254740993'), ('9007199254740993.0000000001'),
('0.3'), ('0.30000000000000004'), ('"NaN"'), ('"Infinity"'),
('[1, 2]'), ('[2, 1]'), ('[12]'), ('[[1], 2]'), ('[1, [2]]'), ('[1, 2, null]'),
('["a", "b"]'), ('["ab"]'), ('["a,b"]'), ('["ab", ""]'), ('["", "ab"]'),
('["a\",\"b"]'), ('"a"'), ('"A"'), ('"a "'), ('" a"'),
('{"a": null}'), ('{"a": 1}'), ('{"a": "1"}'), ('{"a": [1]}'), ('{"A": 1}'),
('{"": 1}'), ('{"a": {}}'), ('{"a": []}'), ('[{"a": 1}]'), ('["a", 1]'),
('{"a": 1, "b": 2}'), ('{"a": 2, "b": 1}'), ('{"a": {"b": 2}}'),
('[{"a": 1}, {"b": 2}]'), ('{"a": 1, "b": 2, "c": null}'),
('{"a": {"b": 1}, "c": 2}'), ('{"a": {"b": 1, "c": 2}}'),
('{"ab": 1}'), ('{"a": "b"}'), ('{"a": "b", "c": "d"}'), ('["a", "b", "c", "d"]');
SELECT a.doc, b.doc FROM different a JOIN different b ON a.doc < b.doc
WHERE idem_fingerprint(a.doc::jsonb) = idem_fingerprint(b.doc::jsonb);
SELECT count(*) = count(DISTINCT idem_fingerprint(doc::jsonb)) AS all_differ,
       count(*) AS docs
FROM different;

-- What SQL makes is what JSON text makes; jsonb has no NaN, only its name.
SELECT idem_fingerprint(to_jsonb(1.50)) = idem_fingerprint('1.5') AS numeric,
       idem_fingerprint(to_jsonb(0.1::float8)) = idem_fingerprint('0.1') AS float8,
       idem_fingerprint(to_jsonb('-0'::float8)) = idem_fingerprint('0') AS minus_zero,
       idem_fingerprint(to_jsonb('NaN'::numeric)) = idem_fingerprint('"NaN"') AS nan,
       idem_fingerprint(to_jsonb('Infinity'::float8)) = idem_fingerprint('"Infinity"') AS infinity,
       idem_fingerprint(jsonb_build_object('b', 1, 'a', array[2])) =
       idem_fingerprint('{"a": [2], "b": 1}') AS built,
       idem_fingerprint('{"a": [1]}'::jsonb -> 'a' -> 0) = idem_fingerprint('1') AS extracted;

-- Strings of every length up to several buffers, and what follows them.
SELECT count(*) FILTER (WHERE idem_fingerprint(jsonb_build_array(repeat('x', n), n)) =
         sha256('\x4944454d015b0000000222' || int4send(n) || repeat('x', n)::bytea ||
                '\x23' || substring(numeric_send(n) FOR 6) || substring(numeric_send(n) FROM 9))) AS agree,
       count(*) AS all
FROM generate_series(0, 6500) AS n;

-- The largest and longest numbers there are.
SELECT idem_fingerprint((repeat('9', 131072) || '.' || repeat('9', 16383))::jsonb) =
       sha256('\x4944454d01' || decode('2390007fff0000' || repeat('270f', 36863) || '2706', 'hex')) AS longest;

-- A big document, however it is stored.
CREATE TEMP TABLE stored (how text, doc jsonb);
INSERT INTO stored
SELECT 'compressed', jsonb_agg(jsonb_build_object('id', n, 'name', 'item ' || n, 'price', n * 0.01))
FROM generate_series(1, 20000) AS n;
ALTER TABLE stored ALTER doc SET STORAGE EXTERNAL;
INSERT INTO stored SELECT 'external', doc || '[]' FROM stored;
SELECT how, pg_column_size(doc) < 500000 AS is_compressed, idem_fingerprint(doc)
FROM stored ORDER BY how;
SELECT idem_fingerprint(doc) = idem_fingerprint(doc::text::jsonb) AS plain FROM stored;

-- NULL is no request; JSON null is one.
SELECT idem_fingerprint(NULL) IS NULL AS no_request,
       octet_length(idem_fingerprint('null')) AS json_null;
SELECT provolatile, proisstrict, proparallel, proleakproof
FROM pg_proc WHERE oid = 'idem_fingerprint(jsonb)'::regprocedure;
CREATE INDEX ON stored (idem_fingerprint(doc));

-- Too deep: refused by the type, and by ourselves where the type was happy.
\set VERBOSITY sqlstate
SELECT idem_fingerprint((repeat('[', 1000000) || repeat(']', 1000000))::jsonb);
\set VERBOSITY default
CREATE TEMP TABLE deep AS
SELECT (repeat('[{"a":', 1500) || '1' || repeat('}]', 1500))::jsonb AS doc;
SET max_stack_depth = '200kB';
DO $$
BEGIN
  PERFORM idem_fingerprint(doc) FROM deep;
EXCEPTION WHEN statement_too_complex THEN
  RAISE NOTICE 'too deep';
END
$$;
RESET max_stack_depth;
SELECT idem_fingerprint(doc) =
       sha256('\x4944454d01' || decode(repeat('5b000000017b000000010000000161', 1500) ||
                                       '230001000000000001', 'hex')) AS deep
FROM deep;
