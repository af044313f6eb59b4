# shellcheck shell=bash disable=SC2034,SC2154
#
# Faults of every kind under traffic, and the checker that judges the outcome.
# Its servers are its own.

suite_files[chaos]='test/chaos/*.py'

packages_chaos()
{
	printf '%s\n' prove=perl python:psycopg=python3-psycopg pgbouncer=pgbouncer
}

suite_chaos()
{
	local file status=0

	for file in "$@"; do
		with_small_volumes prove "${prove_flags[@]}" --exec '' "$file" || status=1
	done
	return "$status"
}

# As the server user, with two file systems that are soon full where root may
# mount them.  The mounts are in a namespace of their own and end with the last
# process in it.
with_small_volumes()
{
	local propagation

	propagation=$(private_propagation)
	if [[ -z $propagation ]]; then
		as_server_user "$@"
		return
	fi
	mkdir -p "$work_dir"/chaos-volume/{space,wal}
	(
		export work_dir
		export -f as_server_user mount_and_run mount_small
		unshare --mount --propagation "$propagation" \
			bash -c 'mount_and_run "$@"' - "$work_dir/chaos-volume" "$@"
	)
}

# Within a chroot "private" fails, since / is no mount there; but script/test's
# roots (root.sh) are private already.  Nothing where mounting is not allowed.
private_propagation()
{
	local propagation

	for propagation in private unchanged; do
		if ((EUID == 0)) && unshare --mount --propagation "$propagation" \
			mount -t tmpfs tmpfs "$work_dir" 2>/dev/null; then
			echo "$propagation"
			return
		fi
	done
}

mount_and_run()
{
	local dir=$1
	shift

	# room in the table space for what clients write while a fault takes its time
	mount_small "$dir/space" 96m && mount_small "$dir/wal" 48m &&
		as_server_user env CHAOS_VOLUME="$dir" "$@"
}

mount_small()
{
	mount -t tmpfs -o "size=$2,mode=700,uid=$(id -u postgres)" tmpfs "$1" &&
		as_server_user mkdir "$1/data"
}
