# Crashes.  What a claim promised before a crash holds after it: a committed
# lease is still a lease, what was not committed never was, and time alone
# turns no abandoned claim into permission to run again.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use Test::More;

my $node = new_node('crash', conf => "restart_after_crash = on\n");
$node->safe_psql('postgres', 'CREATE TABLE effect (key text)');

sub sql { return $node->safe_psql('postgres', $_[0]) }
sub lookup { return sql("SELECT outcome FROM idem_lookup('s', '$_[0]')") }

# --- The server stops at once ---------------------------------------------------

my @states = (
	# key, what is committed, what is open at the crash, what is left
	[ 'never', '', q{SELECT idem_claim('s', 'never'); INSERT INTO effect VALUES ('never')}, 'absent' ],
	[ 'finished',
		'', q{SELECT idem_claim('s', 'finished'); SELECT idem_finish('s', 'finished')}, 'absent' ],
	[ 'open lease', '', q{SELECT idem_claim('s', 'open lease', lease => '1 h')}, 'absent' ],
	[ 'done', q{BEGIN; SELECT idem_claim('s', 'done');
		SELECT idem_finish('s', 'done', response_body => 'body'); COMMIT}, '', 'replayed' ],
	[ 'lease', q{SELECT idem_claim('s', 'lease', lease => '1 h')}, '', 'in_progress' ],
	[ 'open finish', q{CREATE TABLE own AS SELECT token FROM idem_claim('s', 'open finish', lease => '1 h')},
		q{SELECT idem_finish('s', 'open finish', token => token) FROM own}, 'in_progress' ],
	[ 'open forget', q{SELECT idem_once('s', 'open forget')},
		q{SELECT idem_forget('s', 'open forget')}, 'replayed' ],
);
my @open;
for my $case (@states)
{
	my ($key, $committed, $uncommitted) = @$case;
	sql($committed) if $committed;
	push @open, my $s = session($node);
	$s->do("BEGIN; $uncommitted");
}
sql('CHECKPOINT');
$node->stop('immediate');
$_->quit for @open;
$node->start;
is(lookup($_->[0]), $_->[3], "after the crash, $_->[0]: $_->[3]") for @states;
is(sql("SELECT response_body FROM idem_claim('s', 'done')"), 'body', 'the response is there');
is(sql("SELECT idem_finish('s', 'open finish', token => token) FROM own"),
	't', 'the token of the lease is good');
is(sql('SELECT count(*) FROM effect'), '0', 'no effect without its claim');

# --- A worker is killed ------------------------------------------------------------

# A crash makes the server start all its processes anew.  Until it has seen the
# crash it takes connections, which it then ends.
sub await_restart
{
	my ($process, $pid) = @_;
	$node->poll_query_until('postgres',
		"SELECT pid <> $pid FROM pg_stat_activity WHERE backend_type = '$process'")
	  or die 'the server does not come back';
	return;
}

# Killing a backend makes the server restart, which ends all sessions.  Right
# before it is killed it may be sent a last statement.
sub kill_backend
{
	my ($s, $last) = @_;
	my $checkpointer = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'checkpointer'");
	$s->send($last) if $last;
	kill('KILL', $s->pid) or die "kill: $!";
	$s->result;
	$s->quit;
	await_restart('checkpointer', $checkpointer);
	return;
}

# Within the transaction nothing is left; what COMMIT became is found by lookup.
my @steps = (
	q{SELECT idem_claim('s', 'unit')},
	q{INSERT INTO effect VALUES ('unit')},
	q{SELECT idem_finish('s', 'unit')});
for my $reached (0 .. $#steps)
{
	my $s = session($node);
	$s->do(join ';', 'BEGIN', @steps[ 0 .. $reached ]);
	$s->send('SELECT pg_sleep(600)');
	await($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = " . $s->pid);
	kill_backend($s);
	is(lookup('unit') . sql('SELECT count(*) FROM effect'), 'absent0',
		"killed after step $reached: neither claim nor effect");
}

my $s = session($node);
$s->do(join ';', 'BEGIN', @steps);
kill_backend($s, 'COMMIT');
like(lookup('unit') . sql('SELECT count(*) FROM effect'),
	qr/^(absent0|replayed1)$/, 'killed at COMMIT: both or neither');

# A lease whose holder is dead.
my %token;
$s = session($node);
for my $policy (qw(unknown retry))
{
	$token{$policy} = $s->do(
		"SELECT token FROM idem_claim('s', 'l-$policy', '', '[1]', lease => '200 ms', on_abandon => '$policy')"
	);
	$s->do("SELECT idem_checkpoint('s', 'l-$policy', token => '$token{$policy}', checkpoint => 'charging')");
}
$s->send('SELECT pg_sleep(600)');
await($node, "SELECT wait_event = 'PgSleep' FROM pg_stat_activity WHERE pid = " . $s->pid);
kill_backend($s);
await($node, "SELECT outcome = 'unknown' FROM idem_lookup('s', 'l-unknown')");
await($node, "SELECT outcome = 'released' FROM idem_lookup('s', 'l-retry')");

is(sql("SELECT outcome, state, attempt, checkpoint FROM idem_claim('s', 'l-unknown', '', '[1]')"),
	'unknown|processing|1|charging', 'nobody may guess what became of the work');
is(sql("SELECT outcome FROM idem_claim('s', 'l-retry', '', '[2]')"),
	'mismatch', 'retry: another request does not get it');
my $again = sql("SELECT outcome, attempt, recovered, checkpoint, token <> '$token{retry}'
	FROM idem_claim('s', 'l-retry', '', '[1]', lease => '1 h')");
is($again, 'claimed|2|t|charging|t', 'retry: the next claim gets it, with a new token');
for my $call (
	"idem_finish('s', 'l-retry', token => '$token{retry}')",
	"idem_extend('s', 'l-retry', token => '$token{retry}')",
	"idem_checkpoint('s', 'l-retry', token => '$token{retry}', checkpoint => 'late')",
	"idem_assert('s', 'l-retry', token => '$token{retry}')")
{
	my $zombie = session($node);
	is($zombie->do("BEGIN; INSERT INTO effect VALUES ('zombie'); SELECT $call"),
		'ERROR ID001', "the dead worker's token is worth nothing to $call");
	$zombie->do('COMMIT');
	$zombie->quit;
}
is(sql("SELECT count(*) FROM effect WHERE key = 'zombie'"), '0', 'and its rows are rolled back');

# --- Unknown is for ever --------------------------------------------------------------

sql(q{
	SELECT idem_claim('s', 'u', ttl => '1 ms', lease => '1 ms');
	CREATE TABLE said AS SELECT token FROM idem_claim('s', 'v', ttl => '1 ms', lease => '1 h');
	SELECT idem_finish('s', 'v', token => token, state => 'unknown') FROM said});
await($node, "SELECT outcome = 'unknown' FROM idem_lookup('s', 'u')");
await($node, "SELECT every(expires_at < clock_timestamp()) FROM idem_record WHERE key IN ('u', 'v')");
for my $event ('sweep', 'restart', 'crash')
{
	sql('SELECT idem_sweep(); CALL idem_sweep_all()') if $event eq 'sweep';
	$node->restart if $event eq 'restart';
	$node->stop('immediate'), $node->start if $event eq 'crash';
	is(sql("SELECT outcome FROM idem_claim('s', '$_', on_abandon => 'retry')"),
		'unknown', "$_ is still unknown after a $event")
	  for qw(u v);
}
is( sql(q{BEGIN;
	SELECT outcome, attempt, recovered FROM idem_takeover('s', 'u');
	SELECT idem_finish('s', 'u', response_code => 200, ttl => '1 h');
	COMMIT;
	SELECT outcome, response_code FROM idem_claim('s', 'u')}),
	"claimed|2|t\nt\nreplayed|200", 'until takeover and finish');
is(sql(q{SELECT idem_forget('s', 'v'); SELECT outcome FROM idem_lookup('s', 'v')}),
	"t\nabsent", 'or until it is forgotten');

# --- synchronous_commit = off ------------------------------------------------------------

# With the WAL writer stopped, nothing but a commit that insists flushes what
# this session writes; killing the stopped WAL writer is a crash that loses
# the rest.
$node->append_conf('postgresql.conf', "synchronous_commit = off\n");
$node->reload;

# How far the flush lags: at most the header of a page once all is flushed.
my $unflushed = 'SELECT pg_current_wal_insert_lsn() - pg_current_wal_flush_lsn() > 40';
my $walwriter;

sub stop_walwriter
{
	await($node, "SELECT count(*) = 1 FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	$walwriter = sql("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'");
	kill('STOP', $walwriter) or die "kill: $!";
	return;
}

sub lose_wal_buffers
{
	kill('KILL', $walwriter) or die "kill: $!";
	$s->quit;
	await_restart('walwriter', $walwriter);
	return;
}

sub lags
{
	my ($call, $verdict, $what) = @_;
	$s->do($call);
	is($s->do($unflushed), $verdict, $what);
	return;
}

sub is_flushed { return lags($_[0], 'f', "flushed at commit: $_[1]") }
sub is_not_forced { return lags($_[0], 't', "not forced: $_[1]") }

$s = session($node);
$s->do(q{SELECT idem_claim('s', 'warm', lease => '1 h')});
stop_walwriter();
is_not_forced(q{INSERT INTO effect VALUES ('async')}, 'an ordinary commit');
my $token = '00000000-0000-4000-8000-000000000001';
is_flushed(q{SELECT idem_claim('s', 'e', lease => '10 min')}, 'a leased claim');
is_flushed("SELECT idem_claim('s', 'd', lease => '10 min', claim_token => '$token')",
	'a leased claim with a token of its own');
is_flushed("SELECT idem_claim('s', 'd', lease => '10 min', claim_token => '$token')",
	'the same claim repeated');
is_flushed("SELECT idem_extend('s', 'd', token => '$token')", 'extend');
is_flushed("SELECT idem_checkpoint('s', 'd', token => '$token', checkpoint => 'charging')",
	'checkpoint');
is_flushed(q{SELECT idem_takeover('s', 'd', lease => '20 min', force => true)}, 'a takeover');
$s->do("SELECT idem_claim('s', 'r', lease => '10 min', claim_token => '$token');
	SELECT idem_finish('s', 'r', token => '$token', state => 'released')");
is_flushed(q{SELECT idem_claim('s', 'r', lease => '10 min')}, 'a re-claim');
is_flushed(q{SELECT idem_resolve('s', 'warm', state => 'failed', force => true)}, 'a resolution');
$s->do("SELECT idem_claim('s', 'no retry', lease => '1 ms', on_abandon => 'retry', claim_token => '$token')");
$s->do(q{SELECT idem_claim('s', 'taken', lease => '10 min')});
is_flushed(q{BEGIN; SELECT idem_takeover('s', 'taken', lease => '0', force => true);
	SELECT idem_finish('s', 'taken', state => 'failed'); COMMIT}, 'a transactional takeover');
is_flushed("SELECT idem_finish('s', 'no retry', token => '$token', state => 'unknown')", 'a finish as unknown');
is_not_forced(
	q{BEGIN; SELECT idem_claim('s', 't'); INSERT INTO effect VALUES ('t'); SELECT idem_finish('s', 't'); COMMIT},
	'a transactional claim');
is_not_forced(q{SELECT idem_once('s', 'o')}, 'once');
is_not_forced(
	q{SET idempotency.durable_claims = off; SELECT idem_claim('s', 'n', lease => '1 h')},
	'a leased claim with durable_claims = off');
lose_wal_buffers();

is(sql(q{SELECT outcome, l.attempt, r.checkpoint
	FROM idem_lookup('s', 'd') l, idem_record r WHERE key = 'd'}),
	'in_progress|2|charging', 'the takeover and the checkpoint survived the crash');
is(lookup('r'), 'in_progress', 'so did the re-claim');
is(lookup('taken'), 'replayed', 'and the transactional takeover');
is(sql(q{SELECT outcome FROM idem_claim('s', 'no retry', lease => '1 h')}),
	'unknown', 'and the finish as unknown, which took back a retry');
is(lookup('t') . sql(q{SELECT count(*) FROM effect WHERE key = 't'}),
	'absent0', 'a transactional claim was lost together with its effect');
is(lookup('n'), 'absent', 'a claim that need not be durable was lost');

# A claim, and nothing after it, at the moment of the crash.
$s = session($node);
stop_walwriter();
$s->do(q{SELECT idem_claim('s', 'last', lease => '1 h')});
lose_wal_buffers();
is(lookup('last'), 'in_progress', 'a leased claim survives a crash right after its commit');

$node->stop;
done_testing();
