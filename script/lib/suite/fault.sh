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
	local src=$work_dir/fault-src pg=$work_dir/fault-pg private_config
	local specs=() programs=() status=0

	split_files "$@"
	copy_source "$repository" "$src"
	build_extension "$src" "$pg_config" PG_CPPFLAGS=-DIDEM_FAULT_POINTS || return
	private_config=$(private_server "$pg" "$pg_config")
	install_extension "$src" "$pg" "$pg_config" || return
	cluster_start "${private_config%/*}" "$work_dir/fault-cluster" \
		"autovacuum = off" "max_prepared_transactions = 2"
	cd "$src" || return
	((${#specs[@]} == 0)) || installcheck ISOLATION="$(names_of "${specs[@]}")" \
		ISOLATION_OPTS="--inputdir=test/fault --load-extension=idempotency --dbname=fault" ||
		status=$?
	run_fault_programs || status=$?
	return "$status"
}

split_files()
{
	local file

	for file in "$@"; do
		if [[ $file == *.spec ]]; then
			specs+=("$file")
		else
			programs+=("$file")
		fi
	done
}

# Their output is TAP, which is counted like that of pg_regress.
run_fault_programs()
{
	local file name status=0

	for file in "${programs[@]}"; do
		name=fault_$(basename "$file" .py)
		fresh_database "$name" && as_server_user env PGDATABASE="$name" "./$file" ||
			status=1
	done
	return "$status"
}

failures_fault()
{
	excerpt "$work_dir/fault-src/output_iso/regression.diffs"
}
