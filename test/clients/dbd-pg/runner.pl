# The scenario and the race by DBD::Pg (../lib/scenario.py, ../lib/race.py).
use strict;
use warnings;

use DBD::Pg qw(:pg_types);
use DBI;
use Encode qw(decode encode);
use JSON::PP;
use Time::Piece;

my ($way, $me) = @ARGV;
$| = 1;

my $db = DBI->connect('dbi:Pg:', '', '', {
	AutoCommit => 1,
	RaiseError => 1,
	PrintError => 0,
	pg_server_prepare => $way eq 'prepared',    # not behind a pooler in transaction mode
	pg_switch_prepared => 1,
	pg_placeholder_dollaronly => 1,             # ? is an operator
});

sub escaped { return encode('UTF-8', $_[0]) =~ s/([^A-Za-z0-9._-])/sprintf '%%%02X', ord $1/ger }
sub unescaped { return decode('UTF-8', $_[0] =~ s/%(..)/chr hex $1/ger) }

sub elements { return [ map { unescaped($_) } split /\|/, $_[0] ] }

my %native = (
	boolean => sub { return $_[0] eq 't' ? 1 : 0 },
	bytea => sub { return [ pack('H*', $_[0]), { pg_type => PG_BYTEA } ] },
	interval => sub { return "$_[0] microseconds" });

my %shown = (
	boolean => sub { return $_[0] ? 't' : 'f' },
	bytea => sub { return unpack('H*', $_[0]) },
	interval => sub {
		my ($hours, $minutes, $seconds) = split /:/, $_[0];
		return sprintf '%.0f', ($hours * 60 + $minutes) * 60e6 + $seconds * 1e6;
	},
	timestamptz => sub {
		my ($local, $fraction, $zone) = $_[0] =~ /^(\S+ [\d:]+)(?:\.(\d+))?([+-][\d:]+)$/;
		my ($sign, $hours, $minutes) = $zone =~ /([+-])(\d+):?(\d*)/;
		my $offset = ($hours * 60 + ($minutes || 0)) * 60 * ($sign eq '-' ? -1 : 1);
		return (Time::Piece->strptime($local, '%Y-%m-%d %H:%M:%S')->epoch - $offset)
		  . substr(($fraction // '') . '000000', 0, 6);
	});

sub show
{
	my ($value, $kind) = @_;
	return 'null' unless defined $value;
	return 'ARRAY=' . join('|', map { escaped($_) } @$value) if $kind eq 'text[]';
	return 'scalar=' . escaped($shown{$kind} ? $shown{$kind}->($value) : $value);
}

# Rows as lists.  A parameter is a value, or a list of value and attributes, or
# a list within a list: an array.  A prepared statement that goes away after an
# error takes the SQLSTATE with it, and the transaction; a cached one stays.
sub query
{
	my ($sql, @parameters) = @_;
	my $statement = $db->prepare_cached($sql);
	my $number = 0;
	$statement->bind_param(++$number, ref $_ ? @$_ : $_) for @parameters;
	$statement->execute;
	return @{ $statement->fetchall_arrayref };
}

my %kept;

sub argument
{
	my ($kind, $text) = split /=/, $_[0], 2;
	return undef if $kind eq 'null';
	return $kept{$1} if $text =~ /^@(.*)/;
	return [ elements($text) ] if $kind eq 'text[]';
	$text = unescaped($text);
	return $native{$kind} ? $native{$kind}->($text) : $text;
}

sub step
{
	my ($what, $sql, $parameters, $columns) = @_;
	my %calls = (begin => 'begin_work', commit => 'commit', rollback => 'rollback',
		savepoint => 'pg_savepoint', 'rollback to savepoint' => 'pg_rollback_to');
	if (my $call = $calls{$what})
	{
		$db->$call($what =~ /savepoint/ ? 's' : ());
		return ();
	}
	my @columns = map { [ split />/ ] } split / /, $columns;
	my @rows = query(unescaped($sql), map { argument($_) } split / /, $parameters);
	for my $row (@rows)
	{
		for my $i (0 .. $#columns)
		{
			my ($kind, $name) = @{ $columns[$i] };
			$kept{$name} = $row->[$i] if $name;
			$row->[$i] = show($row->[$i], $kind);
		}
	}
	return map { join ' ', @$_ } @rows;
}

sub conformance
{
	for (@_)
	{
		my ($number, @fields) = split /\t/, $_, -1;
		my @rows = eval { step(@fields) };
		my $error = $@;
		if ($error)
		{
			my $state = $error =~ /^DBD::Pg/ ? $db->state : escaped($error);
			my $column = $db->pg_error_field('column_name') // '';
			print join("\t", $number, 'error', $state, $column), "\n";
			next;
		}
		print join("\t", $number, 'ok', @rows), "\n";
	}
	return;
}

sub transaction
{
	my ($work) = @_;
	$db->begin_work;
	my @result = eval { my @r = $work->(); $db->commit; @r };
	if (my $error = $@)
	{
		$db->rollback unless $db->{AutoCommit};
		die $error;
	}
	return @result;
}

sub body_for { return "$_[0] by $me, $$ \x{1FAD6}" }
sub request_of { return encode_json({ key => $_[0] }) }

sub effect
{
	my ($flow, $key) = @_;
	return $db->do('INSERT INTO effect VALUES ($1, $2, $3, $4)', undef, $flow, $key, $me, $$);
}

sub transactional
{
	my ($key) = @_;
	return transaction(sub {
		my ($row) = query(q{SELECT outcome, response_body
			FROM idem_claim('race', $1, request => $2, wait => '20 ms')}, $key, request_of($key));
		my ($outcome, $body) = @$row;
		if ($outcome eq 'claimed')
		{
			$body = body_for($key);
			effect('transactional', $key);
			query(q{SELECT idem_finish('race', $1, response_body => $2)}, $key, $body);
		}
		return ($outcome, $body);
	});
}

sub leased
{
	my ($key) = @_;
	my ($row) = query(q{SELECT outcome, token, response_body
		FROM idem_claim('leased race', $1, request => $2, lease => '10 min')},
		$key, request_of($key));
	my ($outcome, $token, $body) = @$row;
	if ($outcome eq 'claimed')
	{
		effect('outside', $key);
		$body = body_for($key);
		transaction(sub {
			effect('leased', $key);
			query(q{SELECT idem_finish('leased race', $1, token => $2, response_body => $3)},
				$key, $token, $body);
		});
	}
	return ($outcome, $body);
}

sub race
{
	my @turns = @_;
	my %flows = (transactional => \&transactional, leased => \&leased);
	while (my $turn = shift @turns)
	{
		my ($flow, $key) = split /\t/, $turn;
		my ($outcome, $body) = $flows{$flow}->($key);
		print join("\t", $flow, $key, $outcome, escaped($body // '')), "\n";
		push @turns, $turn if $outcome eq 'in_progress';
	}
	return;
}

chomp(my @lines = <STDIN>);
$me ? race(@lines) : conformance(@lines);
$db->disconnect;
