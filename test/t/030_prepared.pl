# Two-phase commit.  A transaction with an unfinished transactional claim
# cannot be prepared; what a prepared transaction did is held, for everyone
# else and across restarts, until it is committed or rolled back.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use Test::More;

my $node = new_node('prepared', conf => 'max_prepared_transactions = 10');
$node->safe_psql('postgres', 'CREATE TABLE effect (key text)');
my $s = session($node);
my $other = session($node);

sub lookup
{
	my ($key) = @_;
	return $other->do("SELECT l FROM idem_lookup('s', '$key') l");
}

my $nothing_but_in_progress = '(in_progress,,,,,,,,,,)';
my $absent = '(absent,,,,,,,,,,)';

# --- Unfinished transactional claims ------------------------------------------

my $claim = "SELECT outcome FROM idem_claim('s', 'k')";
my $finish = "SELECT idem_finish('s', 'k')";
my %unfinished = (
	'a claim' => "$claim;",
	'a claim in a released savepoint' => "SAVEPOINT a; $claim; RELEASE a;",
	'a claim finished in a savepoint that was rolled back' =>
	  "$claim; SAVEPOINT a; $finish; ROLLBACK TO a;",
	'a takeover without a lease' => "SELECT outcome FROM idem_takeover('s', 'released');",
);
$node->safe_psql('postgres', q{
	BEGIN;
	SELECT idem_claim('s', 'released');
	SELECT idem_finish('s', 'released', state => 'released');
	COMMIT;
});
for my $case (sort keys %unfinished)
{
	$s->do("BEGIN; INSERT INTO effect VALUES ('k'); $unfinished{$case}");
	is($s->do("PREPARE TRANSACTION 'p'"), 'ERROR ID002', "$case is refused");
	is($s->do('SELECT count(*) FROM pg_prepared_xacts; SELECT count(*) FROM effect'),
		"0\n0", "$case: nothing is left of the transaction");
	is(lookup('k'), $absent, "$case: no record of it");
}
like(lookup('released'), qr/^\(released,released,1,/, 'the takeover is undone');

my %finished = (
	'a claim in a savepoint that was rolled back' => "SAVEPOINT a; $claim; ROLLBACK TO a;",
	'a released claim' => "$claim; SELECT idem_finish('s', 'k', state => 'released');",
	'a claim that was forgotten' => "$claim; SELECT idem_forget('s', 'k');",
	'a claim finished in a savepoint' => "$claim; SAVEPOINT a; $finish; RELEASE a;",
);
for my $case (sort keys %finished)
{
	$s->do("BEGIN; $finished{$case}");
	is($s->do("PREPARE TRANSACTION 'p'"), '', "$case does not prevent it");
	is($s->do("ROLLBACK PREPARED 'p'"), '', "$case: rolled back");
	is(lookup('k'), $absent, "$case: no record of it");
}

# --- A finished transactional claim --------------------------------------------

sub prepare_finished
{
	my ($key) = @_;
	$s->do(qq{
		BEGIN;
		SELECT idem_claim('s', '$key');
		INSERT INTO effect VALUES ('$key');
		SELECT idem_finish('s', '$key', response_body => 'done');
		PREPARE TRANSACTION '$key';
	});
	return;
}

prepare_finished('kept');
prepare_finished('undone');
for my $key (qw(kept undone))
{
	is(lookup($key), $nothing_but_in_progress, "prepared $key: lookup knows that it is held");
	is( $s->do("SELECT outcome, state FROM idem_claim('s', '$key', request => '{}')"),
		'in_progress|', "prepared $key: held in the session that prepared it too");
}
is( $other->do("SELECT outcome FROM idem_claim('s', 'kept', wait => '20 ms')"),
	'in_progress', 'a bounded wait for it ends');

$node->restart;
($s, $other) = (session($node), session($node));
is(lookup('kept'), $nothing_but_in_progress, 'held across a restart');
is($other->do("COMMIT PREPARED 'kept'; ROLLBACK PREPARED 'undone'"), '', 'both are ended');
is( $other->do("SELECT outcome, response_body FROM idem_claim('s', 'kept')"),
	'replayed|done', 'COMMIT PREPARED: replays');
is(lookup('undone'), $absent, 'ROLLBACK PREPARED: absent');
is($other->do('SELECT string_agg(key, NULL) FROM effect'), 'kept',
	'the effects went the way of their claims');

# --- A leased claim --------------------------------------------------------------

sub prepare_leased
{
	my ($key) = @_;
	my ($outcome, $token) = split /\|/, $s->do(qq{
		BEGIN;
		SELECT outcome, token FROM idem_claim('s', '$key', lease => '1 h');
		PREPARE TRANSACTION '$key';
	});
	is($outcome, 'claimed', "$key is claimed and prepared");
	return $token;
}

sub check_held
{
	my ($key, $token, $when) = @_;
	is(lookup($key), $nothing_but_in_progress, "$key, $when: lookup");
	is( $other->do("SELECT outcome FROM idem_claim('s', '$key', wait => '20 ms')"),
		'in_progress', "$key, $when: claim");
	is( $other->do("SELECT outcome FROM idem_takeover('s', '$key', force => true)"),
		'in_progress', "$key, $when: a forced takeover");
	is( $other->do("SET lock_timeout = '20 ms'; SELECT idem_finish('s', '$key', token => '$token')"),
		'ERROR 55P03', "$key, $when: finish waits as an UPDATE does");
	is( $other->do("SELECT idem_once('s', '$key')"),
		'ERROR 55P03', "$key, $when: once waits as a unique index would");
	return;
}

my %token = map { $_ => prepare_leased($_) } qw(lease1 lease2);
check_held('lease1', $token{lease1}, 'prepared');
$node->stop('immediate');
$node->start;
($s, $other) = (session($node), session($node));
check_held('lease1', $token{lease1}, 'after a crash');

is($s->do("COMMIT PREPARED 'lease1'"), '', 'committed');
like(lookup('lease1'), qr/^\(in_progress,processing,1,.*\d\d:/, 'now a lease like any other');
is( $other->do("SELECT idem_finish('s', 'lease1', token => '$token{lease1}')"),
	't', 'its token owns it');
is($s->do("ROLLBACK PREPARED 'lease2'"), '', 'rolled back');
is(lookup('lease2'), $absent, 'the lease never was');
is( $other->do("SELECT idem_finish('s', 'lease2', token => '$token{lease2}')"),
	'ERROR ID001', 'its token owns nothing');

# Someone waits for the prepared transaction and gets what it ended as.
prepare_finished('awaited');
my $waiter = session($node);
$waiter->send("SELECT outcome, response_body FROM idem_claim('s', 'awaited', wait => '10 min')");
await($node, 'SELECT wait_event IS NOT NULL FROM pg_stat_activity WHERE state = \'active\' AND pid = '
	  . $waiter->pid);
$s->do("COMMIT PREPARED 'awaited'");
is($waiter->result, 'replayed|done', 'a waiter gets the replay');

# --- A finish, and a fence, of a claim that was committed before ------------------

my $leased = $s->do("SELECT token FROM idem_claim('s', 'f', lease => '1 h')");
$s->do("BEGIN; SELECT idem_finish('s', 'f', token => '$leased'); PREPARE TRANSACTION 'f'");
is(lookup('f'), $nothing_but_in_progress, 'a prepared finish decides nothing yet');
$s->do("ROLLBACK PREPARED 'f'");
like(lookup('f'), qr/^\(in_progress,processing,1,/, 'rolled back, the claim is what it was');
is($s->do("SELECT idem_finish('s', 'f', token => '$leased', response_code => 201)"),
	't', 'and can be finished again');

my $fenced = $s->do("SELECT token FROM idem_claim('s', 'g', lease => '1 ms')");
$s->do("BEGIN; SELECT idem_assert('s', 'g', token => '$fenced'); PREPARE TRANSACTION 'g'");
await($node, "SELECT outcome = 'unknown' FROM idem_lookup('s', 'g')");
$node->restart;
($s, $other) = (session($node), session($node));
is($other->do("SELECT outcome FROM idem_takeover('s', 'g', lease => '1 h')"),
	'in_progress', 'a prepared fence keeps takeovers off, across a restart');
is( $other->do("COMMIT PREPARED 'g'; SELECT outcome, attempt FROM idem_takeover('s', 'g', lease => '1 h')"),
	'claimed|2', 'until it is gone');

$node->stop;
done_testing();
