# shellcheck shell=bash disable=SC2034,SC2154
#
# From one major version of PostgreSQL to the next: the tests that want an
# earlier server, with the extension, beside the one under test.

suite_files[life]='test/life/*.pl'

packages_life()
{
	printf '%s\n' prove=perl perl:IPC::Run=libipc-run-perl
	older_packages
}

# OLDER_SERVERS is VERSION=PREFIX..., oldest first.
suite_life()
{
	local older prefix servers=()

	for older in $(older_versions); do
		prefix=$(install_older "$older") || return
		servers+=("$older=$prefix")
	done
	OLDER_SERVERS="${servers[*]}" installcheck TAP_TESTS=1 PROVE_TESTS="$*" \
		PROVE_FLAGS="${prove_flags[*]}"
}

# A private copy of the server, as that of the server under test.  The headers of
# earlier versions are not for the C23 that compilers have come to take as default.
install_older()
{
	local src=$work_dir/src-$1 pg=$work_dir/pg-$1 config private

	config=$(older_server "$1") &&
		copy_source "$repository" "$src" &&
		build_extension "$src" "$config" with_llvm=no COPT=-std=gnu17 >&2 &&
		private=$(private_server "$pg" "$config") &&
		install_extension "$src" "$pg" "$config" with_llvm=no >&2 &&
		printf '%s\n' "${private%/bin/pg_config}"
}

failures_life()
{
	failures_of_tap life
}
