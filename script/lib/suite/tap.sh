# shellcheck shell=bash disable=SC2034,SC2154
#
# PostgreSQL::Test::Cluster: whatever wants a server of its own.

suite_files[tap]='test/t/*.pl'

packages_tap()
{
	printf '%s\n' prove=perl perl:IPC::Run=libipc-run-perl \
		python:psycopg=python3-psycopg pgbouncer=pgbouncer \
		locale:en_US.utf8=locales-all locale:tr_TR.utf8=locales-all
	addon_package "$1" "$2" cron
}

suite_tap()
{
	installcheck TAP_TESTS=1 PROVE_TESTS="$*" PROVE_FLAGS="--jobs=2 --directives --failures"
}

failures_tap()
{
	failures_of_tap tap
}

# What the failed tests of a suite of this kind left in their logs.
failures_of_tap()
{
	local test

	while IFS= read -r test; do
		excerpt "tmp_check/log/regress_log_$test"
	done < <(sed -n 's,^test/.*/\([^/]*\)\.pl *(Wstat: .*,\1,p' "$work_dir/$1.log")
}
