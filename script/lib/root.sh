# shellcheck shell=bash
#
# Debian roots for the versions of PostgreSQL that this system does not have.
#
#   cache_dir
#       Print the directory in which roots and whatever else takes long to make
#       are kept: $IDEMPOTENCY_ROOTS, by default in the user's or the system's
#       cache.  All in it may be deleted at any time when not in use.
#
#   root_for VERSION
#       Make the root of the Debian release that ships that major version of
#       PostgreSQL, unless it is there already, and set root_dir to it.
#
#   run_in_root DIRECTORY COMMAND...
#       Run a command in root_dir, with a copy of DIRECTORY as its working
#       directory; the status is the command's.  Of the environment it gets
#       proxies and the seeds and scales of random tests.  Call leave_root from
#       the script's EXIT trap: it removes the copy.
#
# A fresh root also brings fresh packages.  It holds a bare system; what the
# tests need is installed into it by the same script that installs it on a
# bare machine.
#
# A root appears under its name only when complete, and one process makes it
# while others wait.  All mounts are made in a mount namespace of their own.
# They end with the last process in it, however it ends, and are never seen
# from outside: no rm can wander through one into the system.

cache_dir()
{
	local cache=${XDG_CACHE_HOME:-}

	if [[ -z $cache ]]; then
		cache=/var/cache
		((EUID == 0)) || cache=$HOME/.cache
	fi
	printf '%s\n' "${IDEMPOTENCY_ROOTS:-$cache/idempotency}"
}

root_for()
{
	local release cache

	release=$(release_of "$1")
	if ((EUID != 0)); then
		die "PostgreSQL $1 is not installed; install it with" \
			"\"apt-get install $(server_packages "$1" | cut -d= -f2 | xargs)\"" \
			"where the system has these packages, or run this as root"
	fi
	cache=$(cache_dir)
	root_dir=$cache/$release
	mkdir -p "$cache"
	(
		flock 9
		if [[ ! -d $root_dir ]]; then
			make_root "$release" "$root_dir.partial"
			mv "$root_dir.partial" "$root_dir"
		fi
	) 9>"$root_dir.lock"
}

release_of()
{
	case $1 in
		15) echo bookworm ;;
		17) echo trixie ;;
		18) echo forky ;;
		*) die "PostgreSQL $1 is not installed, and no Debian release is known" \
			"to ship it; set PG_CONFIG for one of your own" ;;
	esac
}

make_root()
{
	local release=$1 dir=$2 mirror keyring script status=0
	local scripts=/usr/share/debootstrap/scripts

	keyring=/usr/share/keyrings/debian-archive-keyring.gpg
	need_packages debootstrap=debootstrap "$keyring=debian-archive-keyring"
	mirror=$(debian_mirror)
	# A release younger than this debootstrap is made like those before it.
	script=$scripts/$release
	[[ -e $script ]] || script=$scripts/sid
	step "making a root of Debian $release in $dir"
	rm -rf --one-file-system "$dir"
	in_mount_namespace debootstrap --variant=minbase --keyring="$keyring" \
		"$release" "$dir" "$mirror" "$script" </dev/null >"$dir.log" 2>&1 ||
		status=$?
	if ((status != 0)); then
		tail -n 20 "$dir.log" >&2
		die "debootstrap failed; its log is $dir.log"
	fi
	rm "$dir.log"
	configure_root "$dir"
}

# The mirror that this system itself installs from.
debian_mirror()
{
	local site

	site=$(apt_site)
	if [[ -z $site ]]; then
		apt_get update >/dev/null
		site=$(apt_site)
	fi
	[[ -n $site ]] || die "apt has no source of Debian itself configured here"
	printf '%s\n' "$site"
}

# Some images list their mirrors in a file; the first one is taken.
apt_site()
{
	local site

	site=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
		'Origin: Debian' 'Label: Debian' | sed -n 1p)
	case $site in
		mirror+file:*) grep -m 1 -o '^[^# 	]*' "${site#mirror+file:}" ;;
		*) printf '%s\n' "$site" ;;
	esac
}

configure_root()
{
	local dir=$1

	# Installing a package starts nothing.
	printf '#!/bin/sh\nexit 101\n' >"$dir/usr/sbin/policy-rc.d"
	chmod 755 "$dir/usr/sbin/policy-rc.d"
	# A mirror may be a snapshot whose Release file is past its date.  It is
	# still signed, and that is still checked.
	cat >"$dir/etc/apt/apt.conf.d/90idempotency" <<-'EOF'
		Acquire::Check-Valid-Until "false";
		DPkg::Post-Invoke { "rm -f /var/cache/apt/archives/*.deb"; };
	EOF
	# A root that a crash of the machine spoils is made anew.
	echo force-unsafe-io >"$dir/etc/dpkg/dpkg.cfg.d/90idempotency"
}

run_in_root()
{
	local directory=$1 kept status=0
	shift

	root_source=$(mktemp -d "$root_dir/tmp/source.XXXXXX")
	copy_tree "$directory" "$root_source"
	cp /etc/resolv.conf "$root_dir/etc/resolv.conf"
	mapfile -d '' kept < <(env --null |
		grep --null-data -E '^(https?_proxy|[A-Z]+_(SEED|SCALE))=')
	run_job in_mount_namespace bash -c '
		set -e
		mount -t proc proc "$1/proc"
		mount -t tmpfs -o mode=1777 tmpfs "$1/dev/shm"
		exec chroot "$1" env --chdir="$2" "${@:3}"
	' - "$root_dir" "${root_source#"$root_dir"}" --ignore-environment \
		HOME=/root LANG=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin \
		"${kept[@]}" "$@" ||
		status=$?
	leave_root
	return "$status"
}

leave_root()
{
	end_job
	if [[ -n ${root_source:-} ]]; then
		rm -rf --one-file-system "$root_source"
	fi
}

in_mount_namespace()
{
	unshare --mount --propagation private "$@"
}
