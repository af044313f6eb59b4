<?php
$dsn = sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'));
$db = new PDO($dsn, getenv('PGUSER'));

function row(PDO $db, string $sql, array $arguments): array
{
    $statement = $db->prepare($sql);
    $statement->execute($arguments);
    return $statement->fetch(PDO::FETCH_ASSOC);
}

function transaction(PDO $db, callable $work): mixed
{
    $db->beginTransaction();
    try {
        $result = $work();
        $db->commit();
        return $result;
    } catch (Throwable $e) {
        $db->inTransaction() && $db->rollBack();
        throw $e;
    }
}

function create_order(PDO $db, string $key, string $user, array $order): array
{
    $claim = transaction($db, function () use ($db, $key, $user, $order) {
        $claim = row($db, "SELECT outcome, response_code AS code, response_body AS body
            FROM idem_claim('create_order', ?, ?, request => ?, wait => '1 s')",
            [$key, $user, json_encode($order)]);
        if ($claim['outcome'] === 'claimed') {
            $made = row($db, 'INSERT INTO orders (customer, item) VALUES (?, ?) RETURNING id',
                [$user, $order['item']]);
            $claim['code'] = 201;
            $claim['body'] = "{\"order\": $made[id]}";
            row($db, "SELECT idem_finish('create_order', ?, ?, response_code => ?, response_body => ?)",
                [$key, $user, $claim['code'], $claim['body']]);
        }
        return $claim;
    });
    return answer($claim);
}

function charge(PDO $db, string $key, string $user, int $amount): array
{
    $claim = row($db, "SELECT outcome, token, response_code AS code, response_body AS body
        FROM idem_claim('charge', ?, ?, request => ?, lease => '60 s')",
        [$key, $user, json_encode(['amount' => $amount])]);
    if ($claim['outcome'] === 'claimed') {
        $reference = ask_provider($amount);     // outside of any transaction
        $claim['code'] = 201;
        $claim['body'] = json_encode(['charge' => $reference]);
        transaction($db, function () use ($db, $key, $user, $amount, $reference, $claim) {
            $db->prepare('INSERT INTO payments VALUES (?, ?, ?)')->execute([$key, $reference, $amount]);
            row($db, "SELECT idem_finish('charge', ?, ?, token => ?, response_code => ?, response_body => ?)",
                [$key, $user, $claim['token'], $claim['code'], $claim['body']]);
        });
    }
    return answer($claim);
}

function answer(array $claim): array
{
    return match ($claim['outcome']) {
        'claimed', 'replayed' => [$claim['code'], $claim['body']],
        'mismatch' => [422, 'mismatch'],
        default => [409, $claim['outcome']],
    };
}

function ask_provider(int $amount): string
{
    return "ch_$amount";
}

for ($i = 0; $i < 2; $i++) {
    echo implode(' ', create_order($db, 'k-1', '42', ['item' => 'tea'])), "\n";
    echo implode(' ', charge($db, 'k-2', '42', 500)), "\n";
}
