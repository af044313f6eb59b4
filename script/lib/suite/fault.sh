# shellcheck shell=bash disable=SC2034,SC2154
#
# Isolation tests again, of a build in which a session can be made to fail or
# to stop at given points (src/fault.c); so with a server of its own.

suite_files[fault]='test/fault/specs/*.spec'
suite_counter[fault]=count_regress

suite_fault()
{
	local src=$work_dir/fault-src pg=$work_dir/fault-pg private_config

	copy_source "$repository" "$src"
	build_extension "$src" "$pg_config" PG_CPPFLAGS=-DIDEM_FAULT_POINTS || return
	private_config=$(private_server "$pg" "$pg_config")
	install_extension "$src" "$pg" "$pg_config" || return
	cluster_start "${private_config%/*}" "$work_dir/fault-cluster"
	cd "$src" || return
	installcheck ISOLATION="$(names_of "$@")" \
		ISOLATION_OPTS="--inputdir=test/fault --load-extension=idempotency --dbname=fault"
}

failures_fault()
{
	excerpt "$work_dir/fault-src/output_iso/regression.diffs"
}
