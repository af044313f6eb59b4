<?php
// What to know about PDO's pgsql driver, shown; titles as in docs/languages.md.

$db = new PDO(sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE')),
    getenv('PGUSER'));

function trap(string $title, bool $holds, mixed $detail = null): void
{
    echo $holds ? "ok - $title\n" : "not ok - $title: " . var_export($detail, true) . "\n";
}

function run(PDO $db, string $sql, array $arguments = []): PDOStatement
{
    $statement = $db->prepare($sql);
    $statement->execute($arguments);
    return $statement;
}

function error_of(callable $work): ?array
{
    try {
        $work();
    } catch (PDOException $e) {
        return $e->errorInfo ?? [$e->getCode()];
    }
    return null;
}

$got = error_of(fn() => run($db, 'SELECT * FROM idem_takeover(?, ?, force => ?)', ['trap', 'k', false]));
trap('false in execute() is an empty string', $got[0] === '22P02', $got);

$got = run($db, 'SELECT octet_length(?::bytea)', ["ab\x00c"])->fetchColumn();
trap('Without PDO::PARAM_LOB bytes end at the first zero', $got === 2, $got);

$got = run($db, "SELECT idem_fingerprint('{}')")->fetchColumn();
trap('bytea arrives as a stream', is_resource($got) && strlen(stream_get_contents($got)) === 32, $got);
trap('... which is read once', stream_get_contents($got) === '', $got);

$got = error_of(fn() => run($db, "SELECT '{\"a\": 1}'::jsonb ? 'a' WHERE ?::int = 1", [1]));
trap('The operator ? is written ??', $got !== null, $got);
$got = run($db, "SELECT '{\"a\": 1}'::jsonb ?? 'a' WHERE ?::int = 1", [1])->fetchColumn();
trap('... and then works', $got === true, $got);

$got = error_of(fn() => run($db, 'SELECT * FROM idem_claim(?, ?)', ['trap', str_repeat('k', 300)]));
trap('errorInfo has no column field', $got[0] === '22023' && count($got) === 3
    && preg_match('/ERROR:  key is too long/', $got[2]) === 1, $got);

$db->beginTransaction();
run($db, "SELECT idem_once('trap', 'swallowed')");
error_of(fn() => run($db, 'SELECT 1 / 0'));
$said = $db->commit();
$got = run($db, "SELECT outcome FROM idem_lookup('trap', 'swallowed')")->fetchColumn();
trap('COMMIT says nothing after a swallowed error', $said && $got === 'absent', [$said, $got]);

$held = run($db, "SELECT outcome FROM idem_lookup('trap', ?)", ['k']);
$got = $db->query("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%idem_lookup%'")->fetchColumn();
trap('prepare() makes a prepared statement on the server', $got >= 1, $got);
$held = null;
