# What to know about DBD::Pg, shown; titles as in docs/languages.md.
use strict;
use warnings;

use DBI;
use DBD::Pg qw(:pg_types);
use utf8;

my $db = DBI->connect('dbi:Pg:', '', '', { AutoCommit => 1, RaiseError => 1, PrintError => 0 });

sub trap
{
	my ($title, $holds, $detail) = @_;
	print $holds ? "ok - $title\n" : "not ok - $title: " . ($detail // 'undef') . "\n";
	return;
}

sub error_of
{
	my ($work) = @_;
	return undef if eval { $work->(); 1 };
	return $db->state || "$@";
}

# Prepared at its first execution: by default it is at the second.
$db->{pg_switch_prepared} = 1;
$db->begin_work;
eval {
	my $statement = $db->prepare(q{SELECT idem_finish('trap', $1, token => $2)});
	$statement->execute('lost', '00000000-0000-4000-8000-000000000000');
};
my $message = $@;
trap('A statement that goes out of scope takes the SQLSTATE with it',
	$message =~ /is lost|no claim|lost/ && $db->state eq '', $message . $db->state);
my $usable = eval { $db->do('SELECT 1'); 1 };
trap('... and rolls the transaction back on its way', $usable, $@);
eval { $db->rollback };
$db->{pg_switch_prepared} = 2;

my $bytes = "ab\0c";
my ($got) = $db->selectrow_array('SELECT octet_length($1::bytea)', undef, $bytes);
trap('Without PG_BYTEA bytes end at the first zero', $got == 2, $got);
my $statement = $db->prepare('SELECT octet_length($1::bytea)');
$statement->bind_param(1, $bytes, { pg_type => PG_BYTEA });
$statement->execute;
($got) = $statement->fetchrow_array;
trap('... and go in whole with it', $got == 4, $got);

$got = error_of(sub { $db->selectrow_array(q{SELECT '{"a": 1}'::jsonb ? 'a', $1}, undef, 1) });
trap('The operator ? is taken for a placeholder', defined $got, $got);
{
	local $db->{pg_placeholder_dollaronly} = 1;
	($got) = $db->selectrow_array(q{SELECT '{"a": 1}'::jsonb ? 'a' WHERE $1 = 1}, undef, 1);
	trap('... unless pg_placeholder_dollaronly is set', $got, $got);
}

($got) = $db->selectrow_array('SELECT octet_length($1)', undef, "\xc3\xa9");
trap('Bytes that were not decoded are encoded again', $got == 4, $got);

($got) = $db->selectrow_array('SELECT true');
trap('true is 1 and false is 0', $got eq '1', $got);

$db->begin_work;
$db->do(q{SELECT idem_once('trap', 'swallowed')});
eval { $db->do('SELECT 1 / 0') };
my $said = eval { $db->commit };
($got) = $db->selectrow_array(q{SELECT outcome FROM idem_lookup('trap', 'swallowed')});
trap('COMMIT says nothing after a swallowed error', $said && $got eq 'absent', $got);
$statement->finish;
$db->disconnect;
