# shellcheck shell=bash disable=SC2154
#
# Servers of earlier major versions beside the one under test, to upgrade from.
#
#   older_versions
#       Print the tested versions below that under test which can be had here.
#
#   older_server VERSION
#       Print the path of the pg_config of such a server: the one that is
#       installed, else that of the Debian release that ships it, unpacked under
#       $IDEMPOTENCY_ROOTS (see root.sh) once and kept.
#
#   older_packages
#       Print the WHAT=PACKAGE pairs that older_server needs (apt.sh).
#
# pg_upgrade wants both servers on one system, and no Debian release ships two.
# A program runs on any later release, because the C library keeps its old
# interface; what may be missing there are the other libraries, so these come
# from the older release too.  The programs are told to look for them first
# (DT_RPATH, which unlike LD_LIBRARY_PATH says nothing to programs of the newer
# server that the test starts beside them).  So an earlier version is there in
# seconds, as its users have it, where building it takes minutes.

older_versions()
{
	local older packaged

	packaged=$(packaged_server)
	for older in 15 17; do
		((older < version)) || continue
		if pg_bindir "$older" >/dev/null || { ((EUID == 0)) && ((older < packaged)); }; then
			echo "$older"
		fi
	done
}

older_packages()
{
	[[ -z $(older_versions) ]] || echo patchelf=patchelf
}

older_server()
{
	local dir cache

	if dir=$(pg_bindir "$1"); then
		printf '%s\n' "$dir/pg_config"
		return
	fi
	cache=$(cache_dir)
	dir=$cache/postgresql-$1
	mkdir -p "$cache"
	(
		flock 9
		if [[ ! -d $dir ]]; then
			unpack_older "$1" "$dir.partial" >"$dir.log" 2>&1 || {
				tail -n 30 "$dir.log" >&2
				die "could not get PostgreSQL $1; the log is $dir.log"
			}
			rm "$dir.log"
			mv "$dir.partial" "$dir"
		fi
	) 9>"$dir.lock" || return
	printf '%s\n' "$dir/usr/lib/postgresql/$1/bin/pg_config"
}

# An apt of its own, which knows that release only and nothing as installed.
unpack_older()
(
	set -e
	dir=$2 apt=$2/apt bin=$2/usr/lib/postgresql/$1/bin
	rm -rf "$dir"
	mkdir -p "$apt/lists/partial" "$apt/archives/partial"
	touch "$apt/status"
	echo "deb $(debian_mirror) $(release_of "$1") main" >"$apt/sources.list"
	cat >"$apt/apt.conf" <<-END
		Dir::Etc::SourceList "$apt/sources.list";
		Dir::Etc::SourceParts "/dev/null";
		Dir::State "$apt";
		Dir::State::Status "$apt/status";
		Dir::Cache "$apt";
		Acquire::Languages "none";
		Acquire::Check-Valid-Until "false";
	END
	export APT_CONFIG=$apt/apt.conf
	apt-get --quiet update
	cd "$apt/archives"
	# shellcheck disable=SC2046
	apt-get --quiet download $(older_closure "$1")
	for package in *.deb; do
		dpkg-deb --extract "$package" "$dir"
	done
	# Compiling queries needs LLVM, whose libraries alone are larger than all the rest.
	rm -r "$apt" "${bin%/bin}/lib/"{bitcode,llvmjit*}
	home=${dir%.partial} multiarch=$(gcc -print-multiarch)
	libraries=$home/usr/lib/$multiarch:$home/lib/$multiarch
	for program in "$bin"/*; do
		if [[ $(head -c 4 "$program") == $'\x7fELF' ]]; then
			patchelf --force-rpath --set-rpath "$libraries" "$program"
		fi
	done
)

# The server's packages and the libraries they need, directly or not, without
# those that come with every system and are never older than these.
older_closure()
{
	local seen=" libc6 libgcc-s1 libstdc++6 libllvm14 libllvm19 libpq-dev "
	local queue=("postgresql-$1" "postgresql-client-$1" "postgresql-server-dev-$1") package

	while ((${#queue[@]} > 0)); do
		package=${queue[0]}
		queue=("${queue[@]:1}")
		[[ $seen != *" $package "* ]] || continue
		seen+="$package "
		printf '%s\n' "$package"
		mapfile -t -O "${#queue[@]}" queue < <(apt-cache depends --no-recommends \
			--no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances \
			"$package" | sed -n 's/^  *|\?\(Pre\)\?Depends: \(lib[^ ]*\)$/\2/p')
	done
}
