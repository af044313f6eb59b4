# What a claim that waits is told, by how the one it waits for ends.
#
# A waiter naps rather than sleep on a lock, so isolationtester cannot see it
# wait.  Here it is seen in pg_stat_activity.  No test depends on a duration:
# a waiter whose holder will end has a bound that is never reached, and only
# the tests of the bound itself let it run out.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Utils;
use Test::More;

my $node = new_node('waiting',
	conf => 'max_prepared_transactions = 1',
	init => { extra => [ '--encoding=UTF8', '--locale=C' ] });
$node->safe_psql('postgres', 'CREATE TABLE orders (key text, made_by text)');

my @levels = ('READ COMMITTED', 'REPEATABLE READ', 'SERIALIZABLE');
my $shown = 'outcome, state, attempt, recovered';
my $long = "'1 h'";
my $token = '11111111-1111-1111-1111-111111111111';

my $holder = session($node);
my $waiter = session($node);

# Extensions name their wait events from PostgreSQL 17 on.
my $wait_event = $node->pg_version >= 17 ? 'IdempotencyClaim' : 'Extension';

# Send a call and return when it is seen to wait.
sub start_waiting
{
	my ($session, $call) = @_;
	my $pid = $session->pid;

	$session->send($call);
	await($node, qq(
		SELECT count(*) = 1 FROM pg_stat_activity
		WHERE pid = $pid AND state = 'active'
			AND wait_event_type = 'Extension' AND wait_event = '$wait_event'));
	return;
}

sub is_waiting
{
	my ($session, $name) = @_;
	my $pid = $session->pid;

	is($node->safe_psql('postgres', "SELECT state FROM pg_stat_activity WHERE pid = $pid"),
		'active', $name);
	return;
}

# Start a transaction that has its snapshot.
sub begin
{
	my ($session, $level) = @_;
	$session->do("BEGIN ISOLATION LEVEL $level; SELECT count(*) FROM orders");
	return;
}

sub lease
{
	my ($scope, $key, $lease, $on_abandon) = @_;
	$node->safe_psql('postgres', qq(
		SELECT FROM idem_claim('$scope', '$key', lease => '$lease',
			on_abandon => '$on_abandon', claim_token => '$token')));
	return;
}

# --- The holder commits: replayed, byte for byte ---------------------------------

# Too random to be compressed, so that it is stored out of line, and with
# characters that are easily lost on the way.
my $body = q((SELECT string_agg(md5(i::text), E' \n\t\\\\ "\u20ac" ' ORDER BY i)
	FROM generate_series(1, 2000) AS i));
my $bytes = q((SELECT '\x00ff0a0d'::bytea || string_agg(sha256(i::text::bytea), '' ORDER BY i)
	FROM generate_series(1, 1000) AS i));
my $headers = q('{"Location": "/orders/1", "X": ["a", 1.50, null]}');

for my $level (@levels)
{
	for my $kind ([ 'body', $body ], [ 'bytes', $bytes ])
	{
		my ($name, $value) = @$kind;
		my $key = "$level $name";

		begin($waiter, $level);
		begin($holder, $level);
		is($holder->do("SELECT outcome FROM idem_claim('commit', '$key')"),
			'claimed', "$level: the holder claims");
		start_waiting($waiter, qq(
			SELECT outcome, state, attempt, response_code, response_$name = $value,
				response_headers::text = ($headers)::jsonb::text,
				num_nulls(response_body, response_bytes)
			FROM idem_claim('commit', '$key', wait => $long)));
		$holder->do(qq(
			SELECT idem_finish('commit', '$key', response_code => 201,
				response_headers => $headers, response_$name => $value)));
		is_waiting($waiter, "$level: a finish that is not committed changes nothing");
		is($holder->do('COMMIT'), '', "$level: the holder commits");
		is($waiter->result, 'replayed|succeeded|1|201|t|t|1',
			"$level: the waiter replays the $name byte for byte");
		is($waiter->do('COMMIT'), '', "$level: the waiter commits");
	}
}

# To be prepared is not to have ended.
begin($waiter, 'REPEATABLE READ');
$holder->do("BEGIN; SELECT FROM idem_claim('commit', 'prepared')");
start_waiting($waiter, qq(
	SELECT outcome, response_body FROM idem_claim('commit', 'prepared', wait => $long)));
is($holder->do(q(
		SELECT idem_finish('commit', 'prepared', response_body => 'two phases');
		PREPARE TRANSACTION 'p')), 't', 'the holder is prepared');
is_waiting($waiter, 'the waiter waits on');
is($holder->do("COMMIT PREPARED 'p'"), '', 'the prepared transaction is committed');
is($waiter->result, 'replayed|two phases', 'the waiter replays it');
$waiter->do('ROLLBACK');

# --- The holder gives up: claimed ------------------------------------------------

for my $level (@levels)
{
	my %give_up = (
		'rolls back' => sub { $holder->do('ROLLBACK') },
		'rolls back after its finish' => sub {
			$holder->do("SELECT idem_finish('give up', '$_[0]', response_body => 'never')");
			is_waiting($waiter, "$level: a finish that is not committed changes nothing");
			$holder->do('ROLLBACK');
		},
		'rolls back to a savepoint' => sub { $holder->do('ROLLBACK TO SAVEPOINT a') },
		'fails' => sub { $holder->do('SELECT 1/0') },
		'is killed' => sub {
			$node->safe_psql('postgres', "SELECT pg_terminate_backend($holder->{pid})");
		});

	for my $how (sort keys %give_up)
	{
		my $key = "$level $how";

		begin($waiter, $level);
		begin($holder, $level);
		is($holder->do(qq(
				SAVEPOINT a;
				SELECT outcome FROM idem_claim('give up', '$key'))),
			'claimed', "$level: the holder claims");
		$holder->do("INSERT INTO orders VALUES ('$key', 'holder')");
		start_waiting($waiter,
			"SELECT $shown FROM idem_claim('give up', '$key', wait => $long)");
		$give_up{$how}->($key);
		is($waiter->result, 'claimed|processing|1|f',
			"$level: the holder $how, the waiter claims");
		is($waiter->do(qq(
				INSERT INTO orders VALUES ('$key', 'waiter');
				SELECT idem_finish('give up', '$key', response_body => 'by waiter');
				COMMIT)), 't', "$level: the waiter does the work");
		if ($how eq 'is killed')
		{
			$holder->quit;
			$holder = session($node);
		}
		else
		{
			$holder->do('ROLLBACK');
		}
		is($node->safe_psql('postgres', qq(
				SELECT state, attempt, response_body, made_by
				FROM idem_record r JOIN orders o USING (key) WHERE key = '$key')),
			'succeeded|1|by waiter|waiter', "$level: which stands alone");
	}
}

# --- The holder has a lease --------------------------------------------------------

my $mine = "'lease', '%s', token => '$token'";
my @ends = (
	{ end => 'is finished', call => "SELECT idem_finish($mine, response_body => 'done')",
		answer => 'replayed|succeeded|1||done' },
	{ end => 'is released', call => "SELECT idem_finish($mine, state => 'released')",
		answer => 'claimed|processing|2|f|' },
	{ end => 'ends as unknown', call => "SELECT idem_finish($mine, state => 'unknown')",
		answer => 'unknown|unknown|1||' },
	{ end => 'lapses', call => "SELECT idem_extend($mine, lease => '1 us') IS NOT NULL",
		answer => 'unknown|processing|1||' },
	{ end => 'lapses', call => "SELECT idem_extend($mine, lease => '1 us') IS NOT NULL",
		on_abandon => 'retry', answer => 'claimed|processing|2|t|' },
	{ end => 'is forgotten', call => "SELECT idem_forget('lease', '%s')",
		answer => 'claimed|processing|1|f|' },
	{ end => 'is resolved',
		call => "SELECT outcome = 'replayed' FROM idem_resolve('lease', '%s',
			state => 'failed', response_body => 'refused', force => true)",
		answer => 'replayed|failed|2||refused' });

for my $level (@levels)
{
	for my $case (@ends)
	{
		my $on_abandon = $case->{on_abandon} // 'unknown';
		my $name = "$level: a lease $case->{end}, on_abandon $on_abandon";
		my $key = "$level $case->{end} $on_abandon";

		begin($waiter, $level);
		lease('lease', $key, '1 h', $on_abandon);
		start_waiting($waiter, qq(
			SELECT $shown, response_body FROM idem_claim('lease', '$key', wait => $long)));
		is($holder->do("BEGIN ISOLATION LEVEL $level; " . sprintf $case->{call}, $key),
			't', $name);
		is_waiting($waiter, "$level: what is not committed changes nothing");
		$holder->do('COMMIT');
		is($waiter->result, $case->{answer}, "$level: the waiter is told");
		$waiter->do('ROLLBACK');
	}
}

# A lease that nobody renews runs out by itself: the clock that counts is not
# that of the waiter's transaction.
begin($waiter, 'REPEATABLE READ');
lease('lease', 'runs out', '50 ms', 'retry');
is($waiter->do("SELECT $shown FROM idem_claim('lease', 'runs out', wait => $long)"),
	'claimed|processing|2|t', 'the waiter gets what is abandoned while it waits');
$waiter->do('ROLLBACK');

# --- The record is only locked -------------------------------------------------------

for my $call ('idem_claim', 'idem_takeover')
{
	lease('lock', $call, '1 us', 'retry');
	$holder->do("BEGIN; SELECT FROM idem_assert('lock', '$call', token => '$token')");
	begin($waiter, 'REPEATABLE READ');
	start_waiting($waiter, "SELECT $shown FROM $call('lock', '$call', wait => $long)");
	$holder->do('COMMIT');
	is($waiter->result, 'claimed|processing|2|t', "$call waits for a fence to end");
	$waiter->do('ROLLBACK');
}

# --- The other calls that wait -------------------------------------------------------

lease('take', 'k', '1 us', 'unknown');
$holder->do("BEGIN; SELECT FROM idem_takeover('take', 'k')");
start_waiting($waiter, qq(
	SELECT $shown, response_body FROM idem_takeover('take', 'k', wait => $long)));
$holder->do("SELECT idem_finish('take', 'k', response_body => 'reconciled'); COMMIT");
is($waiter->result, 'replayed|succeeded|2||reconciled',
	'a second takeover is told what the first one found out');

my $buy = q($$ INSERT INTO orders VALUES ('executed', 'once') RETURNING made_by $$);
$holder->do("BEGIN; SELECT FROM idem_execute('run', 'k', command => $buy)");
start_waiting($waiter, qq(
	SELECT outcome, response_body FROM idem_execute('run', 'k', command => $buy, wait => $long)));
$holder->do('COMMIT');
is($waiter->result, 'replayed|once', 'a second idem_execute replays the first');
is($node->safe_psql('postgres', "SELECT count(*) FROM orders WHERE key = 'executed'"),
	'1', 'and its command has run once');

$waiter->do("SET idempotency.wait = '1 h'");
$holder->do("BEGIN; SELECT FROM idem_claim('setting', 'k')");
start_waiting($waiter, "SELECT outcome FROM idem_claim('setting', 'k')");
$holder->do("SELECT idem_finish('setting', 'k'); COMMIT");
is($waiter->result, 'replayed', 'idempotency.wait is the wait of a call that gives none');
$waiter->do('RESET idempotency.wait');

# --- Several waiters ---------------------------------------------------------------

# All wait for a claim that is rolled back.  One becomes the holder, which the
# others then wait for.
{
	my @waiters = map { session($node) } 1 .. 3;

	$holder->do("BEGIN; SELECT FROM idem_claim('many', 'many')");
	start_waiting($_, q(
		SELECT outcome, CASE outcome WHEN 'claimed' THEN
				idem_finish('many', 'many', response_body => pg_backend_pid()::text)
			END, response_body
		FROM idem_claim('many', 'many', wait => '1 h'))) for @waiters;
	$holder->do('ROLLBACK');
	my @answers = map { $_->result } @waiters;
	my $winner = $node->safe_psql('postgres',
		"SELECT response_body FROM idem_record WHERE scope = 'many'");
	is_deeply(\@answers,
		[ map { $_->pid eq $winner ? 'claimed|t|' : "replayed||$winner" } @waiters ],
		'of several waiters one claims and the others replay its answer');
	$_->quit for @waiters;
}

# Two transactions wait for each other's claim.  That is no deadlock: neither
# waits longer than it said, and neither loses what it has.
{
	my $other = session($node);

	$holder->do("BEGIN; SELECT FROM idem_claim('cross', 'a')");
	$other->do("BEGIN; SELECT FROM idem_claim('cross', 'b')");
	start_waiting($holder, qq(
		SELECT outcome, response_body FROM idem_claim('cross', 'b', wait => $long)));
	is($other->do("SELECT outcome FROM idem_claim('cross', 'a', wait => '50 ms')"),
		'in_progress', 'crossed waits: one ends at its bound');
	is_waiting($holder, 'crossed waits: the other one goes on');
	$other->do("SELECT idem_finish('cross', 'b', response_body => 'by other'); COMMIT");
	is($holder->result, 'replayed|by other', 'crossed waits: and gets its answer');
	is($holder->do("SELECT idem_finish('cross', 'a'); COMMIT"),
		't', 'crossed waits: both kept their claims');
	$other->quit;
}

# --- The bound -----------------------------------------------------------------------

# That these calls return at all, while the holder sits there, is the point.
for my $level (@levels)
{
	$holder->do("BEGIN ISOLATION LEVEL $level; SELECT FROM idem_claim('bound', '$level')");
	begin($waiter, $level);
	is($waiter->do("SELECT $shown FROM idem_claim('bound', '$level', wait => '0')"),
		'in_progress|||', "$level: a wait of 0 does not wait");
	is($waiter->do("SELECT $shown FROM idem_claim('bound', '$level')"),
		'in_progress|||', "$level: nor does the default");
	for my $bound ('30 ms', '0.3 ms')
	{
		is($waiter->do(qq(
				SELECT $shown, clock_timestamp() - statement_timestamp() >= '$bound'
				FROM idem_claim('bound', '$level', wait => '$bound'))),
			'in_progress||||t', "$level: a wait of $bound ends at its bound, not before");
	}
	is($waiter->do("INSERT INTO orders VALUES ('bound') RETURNING key; COMMIT"),
		'bound', "$level: the transaction goes on");
	$holder->do('ROLLBACK');
}

lease('bound', 'leased', '1 h', 'unknown');
for my $call ('idem_claim', 'idem_takeover')
{
	is($waiter->do("SELECT $shown FROM $call('bound', 'leased', wait => '30 ms')"),
		'in_progress|processing|1|', "$call: at its bound it shows who holds a lease");
}

is($waiter->do(qq(
		BEGIN;
		SELECT outcome FROM idem_claim('self', 'k');
		SELECT outcome FROM idem_claim('self', 'k', wait => $long);
		SELECT idem_finish('self', 'k');
		SELECT outcome FROM idem_claim('self', 'k', wait => $long);
		COMMIT)),
	"claimed\nin_progress\nt\nreplayed", 'no transaction waits for itself');

# --- Interruptions ---------------------------------------------------------------------

# What stands in the way, for the key k of a scope: the holder's commands, and
# whether the key is free when they are rolled back.
my @obstacles = (
	{ name => 'a transaction', hold => "SELECT FROM idem_claim('%1\$s', 'k')", free => 1 },
	{ name => 'a lease', hold => "SELECT FROM idem_claim('%1\$s', 'k', lease => '1 h'); COMMIT" },
	{ name => 'a lock', free => 1, hold => qq(
		SELECT FROM idem_claim('%1\$s', 'k', lease => '1 us', on_abandon => 'retry',
			claim_token => '$token');
		COMMIT;
		BEGIN;
		SELECT FROM idem_assert('%1\$s', 'k', token => '$token')) });

for my $obstacle (@obstacles)
{
	my $name = $obstacle->{name};
	my $call = "SELECT outcome FROM idem_claim('$name', 'k', wait => $long)";
	my $victim = session($node);

	$holder->do('BEGIN; ' . sprintf $obstacle->{hold}, $name);

	start_waiting($waiter, "BEGIN; $call");
	$node->safe_psql('postgres', "SELECT pg_cancel_backend($waiter->{pid})");
	is($waiter->result, 'ERROR 57014', "waiting for $name: can be cancelled");

	is($waiter->do("ROLLBACK; BEGIN; SET LOCAL statement_timeout = '30 ms'; $call"),
		'ERROR 57014', "waiting for $name: statement_timeout ends it");
	$waiter->do('ROLLBACK');

	start_waiting($victim, $call);
	$node->safe_psql('postgres', "SELECT pg_terminate_backend($victim->{pid})");
	is($victim->result, "ERROR 57P01\nconnection lost",
		"waiting for $name: the session can be terminated");
	$victim->quit;

	$holder->do('ROLLBACK');
	is($waiter->do("BEGIN; SELECT outcome FROM idem_claim('$name', 'k'); ROLLBACK"),
		$obstacle->{free} ? 'claimed' : 'in_progress',
		"waiting for $name: who was interrupted leaves nothing behind");
}

# --- Vacuum ------------------------------------------------------------------------------

# A waiter holds no buffer pin, neither of the table nor of an index: a pin
# would keep VACUUM from cleaning the page, and VACUUM FREEZE would hang.  When
# the waiter looks, between two naps, it has one for some microseconds: a VACUUM
# that comes just then passes the page over, and the next one does not.
for my $obstacle (@obstacles)
{
	my $name = $obstacle->{name};
	my $blocker = session($node);
	my $sleeper = session($node);
	my $dead = q((SELECT n_dead_tup FROM pg_stat_all_tables
		WHERE relid = 'idem_record'::regclass));

	# A table of its own, whose statistics nobody else will still add to.  On
	# its only page are garbage that no snapshot needs, and what can be frozen.
	$node->safe_psql('postgres', q(
		DROP EXTENSION idempotency;
		CREATE EXTENSION idempotency;
		SELECT idem_once('freezable', '1');
		BEGIN;
		SELECT count(*) FROM generate_series(1, 10) AS i, idem_claim('garbage', i::text);
		ROLLBACK));
	await($node, "SELECT $dead = 10");

	$blocker->do('BEGIN; ' . sprintf $obstacle->{hold}, $name);
	start_waiting($sleeper, "BEGIN; SELECT outcome FROM idem_claim('$name', 'k', wait => $long)");
	ok($node->poll_query_until('postgres',
			"VACUUM (INDEX_CLEANUP ON) idem_record; SELECT $dead = 0", "VACUUM\nt"),
		"VACUUM while somebody waits for $name finds the page free");
	is($waiter->do(q(
			SET statement_timeout = '30 s';
			VACUUM (FREEZE, INDEX_CLEANUP ON) idem_record;
			RESET statement_timeout)), '', 'and so does VACUUM FREEZE');
	is_waiting($sleeper, 'which waits on');
	$blocker->do($obstacle->{free} ? 'ROLLBACK' : "SELECT idem_forget('$name', 'k')");
	is($sleeper->result, 'claimed', 'and is answered in the end');
	$_->quit for $blocker, $sleeper;
}

$_->quit for $holder, $waiter;
$node->stop;
done_testing();
