# shellcheck shell=bash disable=SC2034,SC2154
#
# Does any step touch memory that it should not?  The server runs under
# valgrind, and is built so that valgrind sees each allocation of PostgreSQL's
# own, and each access to a page that is not pinned (built.sh).  Some twenty
# times slower than without, so only --long runs it by itself.

suite_files[valgrind]='sql/*.sql
	test/isolation/specs/claim-vs-claim.spec test/isolation/specs/insert-loses.spec
	test/isolation/specs/insert-speculative.spec test/isolation/specs/once-twin.spec
	test/isolation/specs/finish-vs-takeover.spec test/isolation/specs/row-lock.spec
	test/isolation/specs/serializable.spec test/isolation/specs/sweep-vs-claim.spec'
suite_counter[valgrind]=count_regress

packages_valgrind()
{
	build_packages
}

suite_valgrind()
{
	local built logs=$work_dir/valgrind-logs private_config status=0

	built=$(built_server "$version") || return
	as_server_user mkdir "$logs"
	separate_server valgrind "$built" || return
	wrap_postgres "${private_config%/*}/postgres" "${built%/bin/*}/valgrind.supp"
	PGCTLTIMEOUT=600 cluster_start "${private_config%/*}" "$work_dir/valgrind-cluster" \
		"autovacuum = off"
	check_files "$@" || status=$?
	cluster_stop "${private_config%/*}" "$work_dir/valgrind-cluster"
	report_valgrind "$logs" || status=$?
	return "$status"
}

# What makes a cluster (initdb) need not be watched.
wrap_postgres()
{
	mv "$1" "$1.bin"
	as_server_user tee "$1" >/dev/null <<-EOF
		#!/bin/sh
		case \$1 in
			-V | --*) exec "$1.bin" "\$@" ;;
		esac
		exec valgrind --quiet --leak-check=no --gen-suppressions=all \\
			--error-markers=FOUND-BEGIN,FOUND-END --num-callers=30 \\
			--suppressions="$2" --log-file="$logs/%p.log" "$1.bin" "\$@"
	EOF
	chmod 755 "$1"
}

# One more test, whose number matters to nobody.
report_valgrind()
{
	local found

	found=$(cat "$1"/*.log | grep -c FOUND-BEGIN) || true
	if ((found == 0)); then
		echo "ok 0 - no error of $(find "$1" -name '*.log' | wc -l) processes under valgrind"
		return
	fi
	echo "not ok 0 - $found errors under valgrind"
	cat "$1"/*.log | head -n 500
	return 1
}

failures_valgrind()
{
	failures_separate valgrind
}
