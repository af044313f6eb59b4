<?php
// The scenario and the race by PDO with its pgsql driver (../lib/scenario.py,
// ../lib/race.py).

declare(strict_types=1);

[, $way] = $argv;
$me = $argv[2] ?? null;

// Placeholders are ?, so the operator ? is ??; not within literals.
function placeholders(string $sql): string
{
    $parts = explode("'", $sql);
    for ($i = 0; $i < count($parts); $i += 2) {
        $parts[$i] = preg_replace('/\$\d+/', '?', str_replace('?', '??', $parts[$i]));
    }
    return implode("'", $parts);
}

// PostgreSQL's own notation of an array: PDO knows none.
function array_literal(array $items): string
{
    return '{' . implode(',', array_map(fn($item) => '"' . addcslashes($item, '"\\') . '"', $items)) . '}';
}

function array_items(string $literal): array
{
    preg_match_all('/"((?:[^"\\\\]|\\\\.)*)"|([^,{}]+)/', $literal, $found, PREG_SET_ORDER);
    return array_map(fn($item) => preg_replace('/\\\\(.)/', '$1', $item[2] ?? $item[1]), $found);
}

/** Value and PDO's type of a parameter. */
function native(string $kind, string $text): array
{
    return match ($kind) {
        'integer' => [(int) $text, PDO::PARAM_INT],
        'boolean' => [$text === 't', PDO::PARAM_BOOL],
        'bytea' => [hex2bin($text), PDO::PARAM_LOB],
        'interval' => ["$text microseconds", PDO::PARAM_STR],
        'text[]' => [array_literal(array_map('rawurldecode', array_filter(explode('|', $text)))), PDO::PARAM_STR],
        default => [$text, PDO::PARAM_STR],
    };
}

function shown(mixed $value, string $kind): string
{
    if ($kind === 'boolean') {
        return $value ? 't' : 'f';
    }
    if ($kind === 'bytea') {
        return bin2hex(stream_get_contents($value));
    }
    if ($kind === 'interval') {
        [$hours, $minutes, $seconds] = explode(':', $value);
        return (string) round(($hours * 60 + $minutes) * 60e6 + $seconds * 1e6);
    }
    if ($kind === 'timestamptz') {
        return (new DateTimeImmutable($value))->format('Uu');
    }
    return (string) $value;
}

function show(mixed $value, string $kind): string
{
    if ($value === null) {
        return 'null';
    }
    $text = $kind === 'text[]' ? implode('|', array_map('rawurlencode', array_items($value)))
        : rawurlencode(shown($value, $kind));
    return rawurlencode(get_debug_type($value)) . '=' . $text;
}

class Client
{
    public PDO $db;
    private array $kept = [];

    public function __construct(string $way)
    {
        $this->db = new PDO('pgsql:host=' . getenv('PGHOST') . ';port=' . getenv('PGPORT')
            . ';dbname=' . getenv('PGDATABASE') . ';user=' . getenv('PGUSER'));
        $this->db->setAttribute(PDO::ATTR_ERRMODE, PDO::ERRMODE_EXCEPTION);
        if ($way === 'emulated') {          // literals
            $this->db->setAttribute(PDO::ATTR_EMULATE_PREPARES, true);
        } elseif ($way === 'unnamed') {     // what a pooler in transaction mode wants
            $this->db->setAttribute(PDO::PGSQL_ATTR_DISABLE_PREPARES, true);
        }
    }

    /** Rows as lists.  Each parameter is a value, or a list of value and PDO's type. */
    public function query(string $sql, array $parameters): array
    {
        $statement = $this->db->prepare(placeholders($sql));
        foreach ($parameters as $i => $parameter) {
            $statement->bindValue($i + 1, ...(is_array($parameter) ? $parameter : [$parameter]));
        }
        $statement->execute();
        return $statement->fetchAll(PDO::FETCH_NUM);
    }

    public function transaction(callable $work): mixed
    {
        $this->db->beginTransaction();
        try {
            $result = $work();
            $this->db->commit();
            return $result;
        } catch (Throwable $e) {
            $this->db->inTransaction() && $this->db->rollBack();
            throw $e;
        }
    }

    private function argument(string $parameter): mixed
    {
        [$kind, $text] = explode('=', $parameter, 2) + [1 => ''];
        if ($kind === 'null') {
            return [null, PDO::PARAM_NULL];
        }
        if (str_starts_with($text, '@')) {
            return $this->kept[substr($text, 1)];
        }
        return native($kind, $kind === 'text[]' ? $text : rawurldecode($text));
    }

    private function step(string $what, string $sql, string $parameters, string $columns): array
    {
        switch ($what) {
            case 'begin':
                $this->db->beginTransaction();
                return [];
            case 'commit':
                $this->db->commit();
                return [];
            case 'rollback':
                $this->db->rollBack();
                return [];
            case 'savepoint':
            case 'rollback to savepoint':
                $this->db->exec("$what s");
                return [];
        }
        $arguments = array_map($this->argument(...), $parameters === '' ? [] : explode(' ', $parameters));
        $rows = [];
        foreach ($this->query(rawurldecode($sql), $arguments) as $row) {
            $values = [];
            foreach (explode(' ', $columns) as $i => $column) {
                [$kind, $name] = explode('>', $column) + [1 => null];
                if ($name !== null) {
                    $this->kept[$name] = $row[$i];
                }
                $values[] = show($row[$i], $kind);
            }
            $rows[] = implode(' ', $values);
        }
        return $rows;
    }

    public function conformance(array $lines): void
    {
        foreach ($lines as $line) {
            [$number, $what, $sql, $parameters, $columns] = explode("\t", $line);
            try {
                echo implode("\t", [$number, 'ok', ...$this->step($what, $sql, $parameters, $columns)]), "\n";
            } catch (PDOException $e) {
                // there is no way to the column field
                $state = $e->errorInfo[0] ?? rawurlencode($e->getMessage());
                echo implode("\t", [$number, 'error', $state, '']), "\n";
            }
        }
    }
}

class Racer
{
    public function __construct(private Client $client, private string $me)
    {
    }

    private function effect(string $flow, string $key): void
    {
        $this->client->query('INSERT INTO effect VALUES ($1, $2, $3, $4)', [$flow, $key, $this->me, getmypid()]);
    }

    private function body(string $key): string
    {
        return "$key by $this->me, " . getmypid() . " \u{1FAD6}";
    }

    private function transactional(string $key): array
    {
        return $this->client->transaction(function () use ($key) {
            [[$outcome, $body]] = $this->client->query(
                "SELECT outcome, response_body FROM idem_claim('race', $1, request => $2, wait => '20 ms')",
                [$key, json_encode(['key' => $key])]);
            if ($outcome === 'claimed') {
                $body = $this->body($key);
                $this->effect('transactional', $key);
                $this->client->query("SELECT idem_finish('race', $1, response_body => $2)", [$key, $body]);
            }
            return [$outcome, $body];
        });
    }

    private function leased(string $key): array
    {
        [[$outcome, $token, $body]] = $this->client->query(
            "SELECT outcome, token, response_body FROM idem_claim('leased race', $1, request => $2,
                lease => '10 min')", [$key, json_encode(['key' => $key])]);
        if ($outcome === 'claimed') {
            $this->effect('outside', $key);
            $body = $this->body($key);
            $this->client->transaction(function () use ($key, $token, $body) {
                $this->effect('leased', $key);
                $this->client->query("SELECT idem_finish('leased race', $1, token => $2, response_body => $3)",
                    [$key, $token, $body]);
            });
        }
        return [$outcome, $body];
    }

    public function race(array $turns): void
    {
        while ($turns) {
            [$flow, $key] = explode("\t", $turn = array_shift($turns));
            [$outcome, $body] = $this->$flow($key);
            echo implode("\t", [$flow, $key, $outcome, rawurlencode($body ?? '')]), "\n";
            if ($outcome === 'in_progress') {
                $turns[] = $turn;
            }
        }
    }
}

$client = new Client($way);
$lines = file('php://stdin', FILE_IGNORE_NEW_LINES);
if ($me === null) {
    $client->conformance($lines);
} else {
    (new Racer($client, $me))->race($lines);
}
