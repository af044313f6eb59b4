# shellcheck shell=bash disable=SC2034,SC2154
#
# A build in which a session can be made to fail or to stop at given points
# (src/fault.c), and so with a server of its own: races that only show then, as
# isolation tests, and programs that try every point.

suite_files[fault]='test/fault/specs/*.spec test/fault/matrix.py test/fault/crash.py'
suite_counter[fault]=count_regress

packages_fault()
{
	printf '%s\n' python:psycopg=python3-psycopg
}

suite_fault()
{
	local file private_config status=0

	separate_server fault "$pg_config" PG_CPPFLAGS=-DIDEM_FAULT_POINTS \
		"${build_arguments[@]}" || return
	cluster_start "${private_config%/*}" "$work_dir/fault-cluster" \
		"autovacuum = off" "max_prepared_transactions = 2"
	check_files "$@" || status=$?
	# their output is TAP, which is counted like that of pg_regress
	for file in "$@"; do
		[[ $file != *.py ]] || fault_program "$file" || status=1
	done
	return "$status"
}

fault_program()
{
	local name

	name=fault_$(basename "$1" .py)
	fresh_database "$name" && as_server_user env PGDATABASE="$name" "./$1"
}

failures_fault()
{
	failures_separate fault
}
