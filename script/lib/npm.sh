# shellcheck shell=bash
#
# Packages from npm.
#
#   npm_modules DIRECTORY
#       Install what DIRECTORY/package-lock.json names, and print the path of
#       the node_modules that has it.
#
# They are kept outside of the repository, in $IDEMPOTENCY_NPM_CACHE (by default
# the user's or the system's cache directory), for as long as the lock file stays
# the same; one process installs while others wait.  No package gets to run a
# script of its own.

npm_modules()
{
	local source=$1 cache=${IDEMPOTENCY_NPM_CACHE:-} lock=$1/package-lock.json dir

	if [[ -z $cache ]]; then
		cache=${XDG_CACHE_HOME:-/var/cache}
		((EUID == 0)) || cache=${XDG_CACHE_HOME:-$HOME/.cache}
		cache=$cache/idempotency
	fi
	dir=$cache/npm-$(sha256sum <"$lock" | cut -c 1-16)
	mkdir -p "$cache"
	(
		flock 9
		if [[ ! -d $dir ]]; then
			step "installing the npm packages of ${source#"$repository"/}"
			rm -rf "$dir.partial"
			mkdir "$dir.partial"
			cp "$source/package.json" "$lock" "$dir.partial/"
			(cd "$dir.partial" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) ||
				exit 1
			mv "$dir.partial" "$dir"
		fi
	) 9>"$dir.lock" >&2 || die "could not install the npm packages of ${source#"$repository"/}"
	printf '%s\n' "$dir/node_modules"
}
