# What the TAP tests share: servers with the extension, and sessions that can
# be left waiting.
#
# PostgreSQL::Test's own background sessions came and changed with minor
# versions, and they do not tell errors from output.  A Session here is one
# psql whose answer to a command is its output with "ERROR" and the SQLSTATE
# after it, so that a test can state either in one comparison.
package Idempotency;

use strict;
use warnings;

use Exporter qw(import);
use File::Copy qw(copy);
use File::Find qw(find);
use File::Path qw(make_path);
use IPC::Run;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;

our @EXPORT = qw(new_node session await
  start_pgbench finish_pgbench run_pgbench available mirror_server);

# A running server with the extension in database postgres.
sub new_node
{
	my ($name, %option) = @_;
	my $node = PostgreSQL::Test::Cluster->new($name);

	$node->init(%{ $option{init} // {} });
	$node->append_conf('postgresql.conf', "autovacuum = off\n" . ($option{conf} // ''));
	$node->start;
	$node->safe_psql('postgres', 'CREATE EXTENSION idempotency');
	return $node;
}

sub session
{
	my ($node, %option) = @_;
	return Idempotency::Session->new($node, %option);
}

# Wait until the query says true, and fail the test program if it never does.
sub await
{
	my ($node, $sql) = @_;
	$node->poll_query_until('postgres', $sql) or die "never true: $sql";
	return;
}

# Start pgbench with a script; finish_pgbench() returns ok, or what it complained of.
# A leading { connstr => ... } among the options goes elsewhere than to the node.
sub start_pgbench
{
	my ($node, $script, @options) = @_;
	my $where = ref $options[0] ? shift(@options)->{connstr} : $node->connstr('postgres');
	my $run = { out => '', err => '' };
	my $file = PostgreSQL::Test::Utils::tempdir() . '/script.sql';

	PostgreSQL::Test::Utils::append_to_file($file, $script);
	$run->{pgbench} = IPC::Run::start(
		[ 'pgbench', '--no-vacuum', '--file', $file, @options, $where ],
		'<', \undef, '>', \$run->{out}, '2>', \$run->{err});
	return $run;
}

sub finish_pgbench
{
	my ($run) = @_;
	my $ok = $run->{pgbench}->finish;

	return $ok && $run->{err} !~ /aborted|error/i ? 'ok' : "pgbench: $run->{err}";
}

sub run_pgbench { return finish_pgbench(start_pgbench(@_)) }

# Is an extension there to be created?
sub available
{
	my ($node, $extension) = @_;
	return $node->safe_psql('postgres',
		"SELECT count(*) FROM pg_available_extensions WHERE name = '$extension'");
}

# Lay a copy of the installation under test below a directory, and return the
# prefix of its programs there.  PostgreSQL finds its files by their place
# relative to its programs, which follow links to find themselves: the programs
# are copied, the rest is linked.  Options: bare, without the extension; and
# pg_config, for another installation.
sub mirror_server
{
	my ($root, %option) = @_;
	my $pg_config = $option{pg_config} // 'pg_config';
	my ($bindir, @rest) =
	  map { my $dir = qx{$pg_config --$_}; chomp $dir; $dir } qw(bindir pkglibdir sharedir);
	my $mirror = sub {
		my ($from, $how) = @_;
		find( { no_chdir => 1, follow_fast => 1, follow_skip => 2, wanted => sub {
			return if $option{bare} && m{/idempotency\b};
			if (-d $_) { make_path("$root$_") }
			else { $how->($_, "$root$_") }
		} }, $from);
	};

	$mirror->($bindir, sub { copy($_[0], $_[1]) or die "copy: $!"; chmod 0755, $_[1] });
	$mirror->($_, sub { symlink $_[0], $_[1] or die "symlink: $!" }) for @rest;
	return "$root$bindir" =~ s{/bin$}{}r;
}

package Idempotency::Session;

use strict;
use warnings;

use IPC::Run;

my $banner = 'the command has been processed';

# Options: dbname, user; or connstr in place of both and of the node's.
sub new
{
	my ($class, $node, %option) = @_;
	my $connstr = $option{connstr} // $node->connstr($option{dbname} // 'postgres')
	  . ($option{user} ? " user=$option{user}" : '');
	my $self = bless { in => '', out => '', err => '' }, $class;

	$self->{timer} = IPC::Run::timeout($PostgreSQL::Test::Utils::timeout_default);
	$self->{psql} = IPC::Run::start(
		[ qw(psql -X -A -t -q -v VERBOSITY=sqlstate -v ON_ERROR_STOP=0 -d), $connstr ],
		'<', \$self->{in}, '>', \$self->{out}, '2>', \$self->{err}, $self->{timer});
	$self->{pid} = $self->do('SELECT pg_backend_pid()');
	return $self;
}

# Start a command; result() waits for it.
sub send
{
	my ($self, $sql) = @_;
	$self->{timer}->start($PostgreSQL::Test::Utils::timeout_default);
	$self->{out} = $self->{err} = '';
	$self->{in} .= "$sql\n;\n\\echo $banner\n\\warn $banner\n";
	$self->{psql}->pump_nb;
	return;
}

sub has_answered
{
	my ($self) = @_;

	$self->{psql}->pump_nb if $self->{psql}->pumpable;
	return ($self->{out} =~ /^\Q$banner\E$/m && $self->{err} =~ /^\Q$banner\E$/m)
	  || !$self->{psql}->pumpable;
}

# Output, and the SQLSTATE of each error; "connection lost" when it is.
sub result
{
	my ($self) = @_;

	until ($self->has_answered)
	{
		eval { $self->{psql}->pump; 1 } or do {
			die $@ if $@ !~ /process ended prematurely|ended/;
			last;
		};
	}
	my $answer = $self->{out};
	my $lost = $answer !~ s/^\Q$banner\E\n//m;
	my @errors = map { "ERROR $_" } $self->{err} =~ /(?:ERROR|FATAL|PANIC):\s+(\w+)/g;
	return join "\n", grep { $_ ne '' } split(/\n/, $answer), @errors,
	  $lost ? 'connection lost' : ();
}

sub do
{
	my ($self, $sql) = @_;
	$self->send($sql);
	return $self->result;
}

sub pid { return $_[0]{pid} }

sub quit
{
	my ($self) = @_;
	$self->{in} .= "\\q\n";
	eval { $self->{psql}->finish };
	return;
}

1;
