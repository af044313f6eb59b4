# shellcheck shell=bash disable=SC2034,SC2154
#
# Undefined behaviour: the tests of regress and isolation again, of a build
# that checks each shift, index, pointer and conversion as it runs.  A finding
# ends the session, and is written to the server's log.

suite_files[ubsan]='sql/*.sql test/isolation/specs/*.spec'
suite_counter[ubsan]=count_regress

suite_ubsan()
{
	local flags='-fsanitize=undefined,float-cast-overflow -fno-sanitize-recover=all' status=0
	local private_config

	# PostgreSQL's flags define what a signed overflow does; here it is an error
	separate_server ubsan "$pg_config" COPT="$flags -fno-wrapv" with_llvm=no || return
	cluster_start "${private_config%/*}" "$work_dir/ubsan-cluster"
	check_files "$@" || status=$?
	if grep -A 5 'runtime error' "$PGHOST/server.log"; then
		status=1
	fi
	return "$status"
}

failures_ubsan()
{
	failures_separate ubsan
}
