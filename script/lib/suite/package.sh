# shellcheck shell=bash disable=SC2034,SC2154
#
# What is handed out: the metadata and the archive for PGXN, Debian's packages.

suite_files[package]='test/package/*.pl'

packages_package()
{
	printf '%s\n' prove=perl perl:IPC::Run=libipc-run-perl git=git unzip=unzip \
		dpkg-buildpackage=dpkg-dev dh=debhelper \
		pg_buildext=postgresql-server-dev-all
}

# A private copy can be run, but not built against.
suite_package()
{
	BUILD_PG_CONFIG=$pg_config installcheck TAP_TESTS=1 PROVE_TESTS="$*" PROVE_FLAGS="${prove_flags[*]}"
}

failures_package()
{
	failures_of_tap package
}
