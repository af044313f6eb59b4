# What a long life and a large transaction cost.  A session that claims and
# finishes a hundred thousand times keeps none of it, a transaction keeps
# about a hundred bytes for each pair and no lock, and nothing makes anybody
# look up subtransactions.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use Test::More;

# The smallest lock table that there is: a lock for each claim would not fit.
my $node = new_node('growth', conf => "max_locks_per_transaction = 10\nmax_connections = 10\n");

my $used = 'SELECT sum(used_bytes) FROM pg_backend_memory_contexts';
my $subtransaction_reads =
  "SELECT sum(blks_hit + blks_read) FROM pg_stat_slru WHERE name ILIKE 'subtrans%'";

# --- A hundred thousand in one session, beside a long transaction ---------------

my $long = session($node);
$long->do(q{BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT idem_once('s', 'long')});
my $reads_before = $node->safe_psql('postgres', $subtransaction_reads);

my $s = session($node);

# Every call and outcome, so that each has had its chance to leak.
my $pairs = q{
	DO $$
	DECLARE
		c record;
	BEGIN
		FOR i IN %d .. %d LOOP
			SELECT * INTO c FROM idem_claim('s', 'k' || i, '', '{"amount": 1}');
			PERFORM idem_finish('s', 'k' || i, token => c.token, response_body => 'ok');
			IF i %% 10 = 0 THEN
				PERFORM outcome FROM idem_claim('s', 'k' || i, '', '{"amount": 1}');
				PERFORM outcome FROM idem_claim('s', 'k' || i, '', '{"amount": 2}');
				PERFORM outcome FROM idem_lookup('s', 'k' || i);
				PERFORM outcome FROM idem_execute('s', 'x' || i, '', '{}', 'SELECT ' || i %% 200);
				PERFORM idem_once_batch('s', ARRAY['k' || i, 'n' || i, 'n' || i]);
				SELECT * INTO c FROM idem_claim('s', 'l' || i, lease => '1 h');
				PERFORM idem_extend('s', 'l' || i, token => c.token);
				PERFORM idem_checkpoint('s', 'l' || i, token => c.token, checkpoint => 'c');
				PERFORM idem_assert('s', 'l' || i, token => c.token);
				PERFORM idem_resolve('s', 'l' || i, state => 'released', force => true);
				PERFORM idem_forget('s', 'l' || i);
			END IF;
			COMMIT;
		END LOOP;
	END
	$$};

# What a process has allocated, in kB.  What of that is resident would depend on
# the system too, which swaps, and makes small pages into huge ones.
sub private_memory
{
	my ($pid) = @_;
	open my $status, '<', "/proc/$pid/status" or return;
	my ($kilobytes) = map { /^VmData:\s+(\d+)/ ? $1 : () } <$status>;
	return $kilobytes;
}

$s->do(sprintf $pairs, 1, 10000);
my ($used_before, $private_before) = ($s->do($used), private_memory($s->pid));
# in parts, as a call may not take for ever
is(join('', map { $s->do(sprintf $pairs, 10000 * $_ + 1, 10000 * ($_ + 1)) } 1 .. 9),
	'', 'a hundred thousand pairs in one session');
my ($used_after, $private_after) = ($s->do($used), private_memory($s->pid));
cmp_ok($used_after - $used_before, '<', 50_000,
	"memory contexts do not grow ($used_before to $used_after bytes)");
SKIP:
{
	skip 'this system does not tell the memory of a process', 1 unless $private_after;
	cmp_ok($private_after - $private_before, '<', 1000,
		"neither does the process ($private_before to $private_after kB)");
}
is($s->do('SELECT count(*) FROM idem_record'), '120000', 'all of them are there');

# A session tells the statistics what it did when it ends.
$s->quit;
await($node, 'SELECT count(*) = 0 FROM pg_stat_activity WHERE pid = ' . $s->pid);
is($node->safe_psql('postgres', $subtransaction_reads),
	$reads_before, 'no subtransaction was looked up beside a long transaction');
$long->do('ROLLBACK');

# That the figure would show it: many subtransactions, seen by somebody else.
my $many = session($node);
$many->do('BEGIN; ' . join '', map { "SAVEPOINT a; SELECT idem_once('control', '$_');" } 1 .. 70);
$node->safe_psql('postgres', q{SELECT idem_once('control', 'later')});
$s = session($node);
$s->do('SELECT count(*) FROM idem_record');
$s->quit;
await($node, "SELECT sum(blks_hit + blks_read) > $reads_before
	FROM pg_stat_slru WHERE name ILIKE 'subtrans%'");
pass('a transaction with many subtransactions shows in that figure');
$many->do('ROLLBACK');
$many->quit;

# --- Twenty thousand in one transaction --------------------------------------------

my $loop = q{
	DO $$
	DECLARE
		c record;
	BEGIN
		FOR i IN 1 .. %d LOOP %s END LOOP;
	END
	$$};
my $claim = q{SELECT * INTO c FROM idem_claim('t', '%1$s' || i);};
my $finish = q{PERFORM idem_finish('t', '%1$s' || i, response_body => 'ok');};
my $in_savepoint = 'BEGIN %s EXCEPTION WHEN division_by_zero THEN NULL; END;';

sub in_loop
{
	my ($count, $statements, $prefix) = @_;
	return sprintf $loop, $count, sprintf $statements, $prefix;
}

my $locks = 'SELECT count(*) FROM pg_locks WHERE pid = pg_backend_pid()';

my $peak = 'IF i %% 19900 = 100 THEN
	INSERT INTO peak SELECT sum(used_bytes) FROM pg_backend_memory_contexts; END IF;';
my $savepoints = sprintf($in_savepoint, $claim) . sprintf($in_savepoint, $finish);

# A session keeps some of what it looks up, such as catalog rows; that is less
# than ten bytes a pair, where a note of a claim would be fifty.
my $caches = 200_000;
$node->safe_psql('postgres', 'CREATE TABLE peak (used numeric)');
$s = session($node);
$s->do('BEGIN; ' . in_loop(100, $_, 'w') . '; ROLLBACK')
  for "$claim $finish", "$claim $finish $peak", $claim, $finish, $savepoints;
$s->do("$_; $used") for $used, $locks;
my $idle = $s->do($used);

$s->do('BEGIN; ' . in_loop(10, "$claim $finish", 'a'));
my $small = $s->do($used);
is($s->do(in_loop(20000, "$claim $finish", 'b')), '', 'twenty thousand pairs in one transaction');
my $large = $s->do($used);
cmp_ok(($large - $small) / 20000, '<=', 100,
	sprintf('at most 100 bytes a pair (%.1f)', ($large - $small) / 20000));
cmp_ok($s->do($locks), '<', 20, 'no lock for each');
is($s->do('COMMIT'), '', 'committed');
cmp_ok($s->do($used) - $idle, '<', $caches, 'released with the transaction');

# Memory while the statement runs counts as well.
$s->do('BEGIN');
$s->do(in_loop(20000, "$claim $finish $peak", 'p'));
is($s->do('SELECT count(*) FROM peak'), '2', 'looked at twice');
cmp_ok($s->do('SELECT (max(used) - min(used)) / 19900 FROM peak'),
	'<=', 100, 'at most 100 bytes a pair while one statement makes them all');
$s->do('ROLLBACK');

# All open at once, then finished: the check at commit has them all to see.
$s->do('BEGIN');
is($s->do(in_loop(20000, $claim, 'c')), '', 'twenty thousand open claims');
cmp_ok($s->do($locks), '<', 20, 'no lock for each');
is($s->do(in_loop(20000, $finish, 'c')), '', 'finished one after the other');
is($s->do('COMMIT'), '', 'committed');
cmp_ok($s->do($used) - $idle, '<', $caches, 'released with the transaction');
is($s->do(q{SELECT count(*) FROM idem_record WHERE scope = 't' AND key ~ '^[bc]'}),
	'40000', 'all are recorded');

# One forgotten among many.
$s->do('BEGIN; ' . in_loop(20000, $claim, 'd'));
$s->do(in_loop(19999, $finish, 'd'));
is($s->do('COMMIT'), 'ERROR ID002', 'one of twenty thousand left unfinished is found');
cmp_ok($s->do($used) - $idle, '<', $caches, 'an abort releases as well');

# Claimed in one savepoint and finished in another, again and again.
$s->do('BEGIN');
is($s->do(in_loop(2000, $savepoints, 'e')), '', 'two thousand pairs across savepoints');
is($s->do('COMMIT'), '', 'committed');
cmp_ok($s->do($used) - $idle, '<', $caches, 'released with the transaction');

$node->stop;
done_testing();
