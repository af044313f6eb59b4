# From the source to what users install: "make dist" makes an archive that
# builds, installs and works; Debian's packages are built from that archive, and
# what is in them works too.
use strict;
use warnings;

use FindBin;
use lib "$FindBin::RealBin/../lib";
use Idempotency;
use PostgreSQL::Test::Cluster;
use PostgreSQL::Test::Utils;
use Test::More;

my $source = "$FindBin::RealBin/../..";
my $dir = PostgreSQL::Test::Utils::tempdir();

# The server to build against; that under test may be a copy without headers.
my $pg_config = $ENV{BUILD_PG_CONFIG} // 'pg_config';
my ($bindir) = map { chomp; $_ } qx{$pg_config --bindir};
my ($sharedir, $pkglibdir) = map { my ($said) = qx{pg_config --$_}; chomp $said; $said } qw(sharedir pkglibdir);
my ($version) = slurp_file("$source/META.json") =~ /^   "version": "([^"]+)"/m;
my ($default) = slurp_file("$source/idempotency.control") =~ /^default_version\s*=\s*'([^']+)'/m;
my $name = "idempotency-$version";

sub lines { my ($out) = run_command([@_]); return split /\n/, $out }

# A cluster of a server that has nothing of the extension but what was installed.
sub works
{
	my ($prefix, $what) = @_;
	my $node = PostgreSQL::Test::Cluster->new($what =~ s/\W/_/gr, install_path => $prefix);

	$node->init;
	$node->start;
	is( $node->safe_psql('postgres', q{
			CREATE EXTENSION idempotency;
			BEGIN;
			SELECT outcome FROM idem_claim('s', 'k');
			SELECT idem_finish('s', 'k', response_body => 'ok');
			COMMIT;
			SELECT outcome, response_body FROM idem_claim('s', 'k');
			SELECT extversion FROM pg_extension WHERE extname = 'idempotency'}),
		"claimed\nt\nreplayed|ok\n$default", "$what: works");
	$node->stop;
	return;
}

# --- The archive ---------------------------------------------------------------------

# Of what is here, whether or not it has been committed: script/test hands over no history.
$ENV{GIT_DIR} = "$dir/git";
$ENV{GIT_WORK_TREE} = $source;
my @author = map { ('-c', $_) } 'user.name=test', 'user.email=test@localhost', 'commit.gpgsign=false';
for my $command ([ 'init', '--quiet' ], [ 'add', '--all' ], [ @author, 'commit', '--quiet', '--message=test' ])
{
	command_ok([ 'git', @$command ], "git @$command[-2, -1]");
}
chdir $source or die "chdir: $!";
command_ok([ 'make', '--silent', 'dist' ], 'make dist');
delete @ENV{qw(GIT_DIR GIT_WORK_TREE)};
ok(-s "$source/$name.zip", "makes $name.zip");

command_ok([ 'unzip', '-q', '-d', $dir, "$source/$name.zip" ], 'which can be unpacked');
chdir "$dir/$name" or die "chdir: $!";
my %packed = map { s{^\./}{}r => 1 } lines('find', '.', '-type', 'f');
my @wanted = map { s{^\Q$source\E/}{}r } map { glob "$source/$_" }
  qw(META.json README.md LICENSE CHANGELOG.md SECURITY.md Makefile *.control *.sql *.c src/*.[ch]
  sql/*.sql expected/*.out test/isolation/*/*.* test/t/*.pl test/lib/*.pm docs/*.md script/test debian/*);
is(join(' ', grep { !$packed{$_} && -f "$source/$_" } @wanted), '', 'it has all the files');
is(join(' ', grep { m{^\.|\.(?:o|so|bc|zip)$|^(?:tmp_check|results|output_iso)/} } keys %packed), '',
	'and none that a user has no use for');
ok(-x "$dir/$name/script/test", 'programs are executable');

my $from_source = "$dir/from_source";
my $prefix = mirror_server($from_source, bare => 1, pg_config => $pg_config);
my @make = ('make', '--silent', "PG_CONFIG=$pg_config");
command_ok(\@make, 'it builds');
command_ok([ @make, 'install', "DESTDIR=$from_source" ], 'and installs');

sub ours
{
	my (@where) = @_;
	return join ' ', sort map { m{([^/]+/[^/]+)$} }
	  lines('find', @where, '-name', 'idempotency*', '-type', 'f');
}
like(ours($from_source), qr{extension/idempotency--\Q$default\E\.sql extension/idempotency\.control .*lib/idempotency\.so\b}, 'library, control file and script');
is(ours($from_source), ours($sharedir, $pkglibdir), 'the same files as from here');
works($prefix, 'from source');
command_ok([ @make, 'clean' ], 'make clean');
is(join(' ', grep { !$packed{ s{^\./}{}r } } lines('find', '.', '-type', 'f')), '', 'leaves what was packed');

# --- Debian's packages -------------------------------------------------------------------

my ($major) = $bindir =~ m{^/usr/lib/postgresql/(\d+)/bin$};
SKIP:
{
	skip "the server under test is not Debian's", 1
	  unless $major;
	skip 'pg_buildext is not installed', 1 if system('command -v pg_buildext >/dev/null 2>&1');

	# as many versions as are installed; here the one under test
	local $ENV{PG_SUPPORTED_VERSIONS} = $major;
	local $ENV{PG_UPDATECONTROL} = 'yes';
	delete local @ENV{qw(PG_CONFIG MAKEFLAGS MAKELEVEL MFLAGS)};
	# The tests that a package's build runs are those of other suites.  Of what it
	# depends on, a C++ compiler and more servers are not needed for this one.
	local $ENV{DEB_BUILD_OPTIONS} = 'nocheck';
	ok(run_log([qw(dpkg-buildpackage --no-sign --build=binary --no-check-builddeps)]), 'packages are built')
	  or last SKIP;

	my ($package) = glob "$dir/postgresql-$major-idempotency_$version-*.deb";
	ok($package, "for PostgreSQL $major") or last SKIP;
	my ($depends) = run_command([ 'dpkg-deb', '--field', $package, 'Depends' ]);
	like($depends, qr/\bpostgresql-$major\b/, 'which they depend on');

	my $private = "$dir/packaged";
	$prefix = mirror_server($private, bare => 1, pg_config => $pg_config);
	command_ok([ 'dpkg-deb', '--extract', $package, $private ], 'unpacked beside a server');
	my $docs = "$private/usr/share/doc/postgresql-$major-idempotency";
	ok((-e "$docs/$_" || -e "$docs/$_.gz"), "$_ is packed")
	  for qw(copyright changelog.Debian changelog README.md SECURITY.md docs/operations.md);
	works($prefix, 'packaged');

	if (!system('command -v lintian >/dev/null 2>&1'))
	{
		my ($changes) = glob "$dir/idempotency_$version-*.changes";
		command_ok([ 'lintian', '--fail-on=error', $changes ], 'lintian finds no error');
	}
}

done_testing();
