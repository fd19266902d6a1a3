#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
#
# Installs what `make` built. See usage() below.
#
# Everything of one release lies in PREFIX/lib/gksm/VERSION/, made beside its place and
# renamed into it, and is never changed afterwards: running programs have libgksm.so
# mapped and a running daemon reads its modules late. The link PREFIX/lib/gksm/current
# names the newest. What was installed stands in PREFIX/lib/gksm/manifest; --uninstall
# removes exactly that, and keeps configuration that was edited.

set -eu
# What is installed is for others to read: gksmd runs as a user of its own.
umask 022

usage() {
	cat <<'USAGE'
usage: install.sh [--prefix DIR] [--sysconfdir DIR] [--destdir DIR] [--build DIR]
                  [--wheelhouse DIR] [--dry-run] [--uninstall]

  --prefix DIR      where to install (/usr/local)
  --sysconfdir DIR  where gksm/gksm.toml goes (/etc; PREFIX/etc if PREFIX is not below /usr)
  --destdir DIR     put this before every path, to make a package
  --build DIR       where make built libgksm.so (build/release)
  --wheelhouse DIR  take Python packages from this folder, not from the package index
  --dry-run         say what would be done, and do nothing
  --uninstall       remove what was installed under this prefix

May be run again: what is there and right is left alone. Needs python3 with venv; needs
root only to write to the places named.
USAGE
}

die() {
	echo "install.sh: $1" >&2
	exit 1
}

say() {
	echo "$1"
}

# Does a command unless --dry-run; then it only shows it.
act() {
	if [ "$dry_run" = yes ]; then
		say "would: $*"
	else
		"$@"
	fi
}

sum() {
	if [ -f "$1" ]; then
		sha256sum "$1" | cut -d' ' -f1
	fi
}

# record KIND PATH: a line of the new manifest. PATH is without destdir.
record() {
	[ "$dry_run" = yes ] && return 0
	# Never empty: read takes several tabs for one.
	case $1 in
	file | config) record_sum=$(sum "$destdir$2") ;;
	*) record_sum=- ;;
	esac
	printf '%s\t%s\t%s\n' "$1" "$record_sum" "$2" >>"$work/manifest"
}

# What the last install recorded as the content of a file; empty if it did not.
recorded() {
	[ -e "$destdir$manifest" ] || return 0
	awk -F '\t' -v path="$1" '$3 == path { print $2 }' "$destdir$manifest"
}

# put FILE PATH: install a file, whole or not at all; unchanged if it is the same.
put() {
	put_source=$1
	put_path=$2
	if ! cmp -s "$put_source" "$destdir$put_path"; then
		act mkdir -p "$destdir$(dirname "$put_path")"
		act cp "$put_source" "$destdir$put_path.new"
		act chmod 644 "$destdir$put_path.new"
		act mv -f "$destdir$put_path.new" "$destdir$put_path"
	fi
	record file "$put_path"
}

# put_config FILE PATH: the same, but what somebody edited stays, and ours goes beside it.
put_config() {
	config_source=$1
	config_path=$2
	before=$(recorded "$config_path")
	now=$(sum "$destdir$config_path")
	if [ -n "$now" ] && [ "$now" != "$before" ] && [ "$now" != "$(sum "$config_source")" ]; then
		say "$config_path was edited and is kept; the new one is $config_path.dist"
		put "$config_source" "$config_path.dist"
		# Not ours any more: --uninstall must not take it.
		return 0
	fi
	if ! cmp -s "$config_source" "$destdir$config_path"; then
		act mkdir -p "$destdir$(dirname "$config_path")"
		act cp "$config_source" "$destdir$config_path.new"
		act chmod 644 "$destdir$config_path.new"
		act mv -f "$destdir$config_path.new" "$destdir$config_path"
	fi
	record config "$config_path"
}

# put_link TARGET PATH: a symbolic link, replaced in one step.
put_link() {
	if [ "$(readlink "$destdir$2" 2>/dev/null || true)" != "$1" ]; then
		act mkdir -p "$destdir$(dirname "$2")"
		# mv would follow a link to a directory and move into it.
		act "$python" -c 'import os, sys
os.path.lexists(sys.argv[2] + ".new") and os.unlink(sys.argv[2] + ".new")
os.symlink(sys.argv[1], sys.argv[2] + ".new")
os.replace(sys.argv[2] + ".new", sys.argv[2])' "$1" "$destdir$2"
	fi
	record link "$2"
}

# A name for what is to be installed: a digest over the library and the daemon.
content() {
	{
		sum "$build/libgksm.so"
		find "$source/daemon" "$source/libgksm/include" "$source/pyproject.toml" \
			"$source/setup.py" -type f ! -name '*.pyc' ! -path '*.egg-info*' |
			LC_ALL=C sort | while read -r file; do
			echo "${file#"$source"}"
			sum "$file"
		done
	} | sha256sum | cut -c1-64
}

# The release's own directory is VERSION; the same version with another content gets a
# name of its own, because the first may be in use.
choose_release() {
	digest=$(content)
	release=$version
	for name in "$version" "$version+$(echo "$digest" | cut -c1-12)"; do
		release=$name
		there=$destdir$libdir/$name
		[ -e "$there" ] || return 0
		[ "$(cat "$there/content" 2>/dev/null || true)" = "$digest" ] && return 0
	done
	die "$there exists and is not what install.sh made; move it away."
}

install_release() {
	place=$libdir/$release
	if [ -e "$destdir$place" ]; then
		say "$place is installed already"
		record tree "$place"
		return 0
	fi
	say "installing $place"
	if [ "$dry_run" = yes ]; then
		say "would: make $destdir$place with libgksm.so and a Python environment"
		return 0
	fi
	# A name that no release has; a leftover of a killed install goes.
	fresh=$destdir$libdir/.new
	rm -rf "$fresh"
	mkdir -p "$fresh"
	cp "$build/libgksm.so" "$fresh/libgksm.so"
	chmod 755 "$fresh/libgksm.so"
	install_daemon "$fresh"
	echo "$digest" >"$fresh/content"
	mv "$fresh" "$destdir$place"
	record tree "$place"
}

install_daemon() {
	# Built from a copy: pip leaves its own build products where it builds.
	mkdir -p "$work/source/libgksm"
	cp -R "$source/pyproject.toml" "$source/setup.py" "$source/daemon" "$work/source/"
	cp -R "$source/libgksm/include" "$work/source/libgksm/"
	"$python" -m venv "$1/venv" ||
		die "python3 -m venv failed; install the python3-venv package."
	if [ -n "$wheelhouse" ]; then
		set -- "$1" --no-index --find-links "$wheelhouse"
	fi
	into=$1
	shift
	"$into/venv/bin/python" -m pip install --disable-pip-version-check -q --no-compile "$@" \
		"$work/source" || die "the Python packages cannot be installed; check the network or --wheelhouse."
	# Nothing is ever added to it, and these name the place where it was made.
	rm -rf "$into"/venv/bin/[Aa]ctivate* "$into"/venv/bin/pip* \
		"$into"/venv/lib/python3*/site-packages/pip \
		"$into"/venv/lib/python3*/site-packages/pip-*
	for script in "$into"/venv/bin/*; do
		if [ ! -L "$script" ] && head -c 2 "$script" | grep -q '^#!'; then
			sed "1s|^#!$into|#!$libdir/$release|" "$script" >"$work/script"
			cat "$work/script" >"$script"
		fi
	done
	"$into/venv/bin/python" -m compileall -q -s "$into" -p "$libdir/$release" \
		"$into"/venv/lib/python3*/site-packages
}

install_all() {
	[ -e "$build/libgksm.so" ] || die "$build/libgksm.so is not there; run make first."
	[ -z "$wheelhouse" ] || [ -d "$wheelhouse" ] ||
		die "--wheelhouse $wheelhouse is not a directory; name one with wheels."
	choose_release
	install_release
	put_link "$release" "$libdir/current"
	for name in gksmd gksm-vault gksmctl; do
		put_link "../lib/gksm/current/venv/bin/$name" "$prefix/bin/$name"
	done
	put "$source/libgksm/include/gksm/gksm.h" "$prefix/include/gksm/gksm.h"
	for name in README.md LICENSE SECURITY.md CHANGELOG.md; do
		[ -e "$source/$name" ] && put "$source/$name" "$prefix/share/doc/gksm/$name"
	done
	for name in gksmd.service gksm-vault.service; do
		sed -e "s|@PREFIX@|$prefix|g" -e "s|@SYSCONFDIR@|$sysconfdir|g" \
			"$source/configs/systemd/$name" >"$work/$name"
		put "$work/$name" "$prefix/lib/systemd/system/$name"
	done
	put "$source/configs/sysusers.d/gksm.conf" "$prefix/lib/sysusers.d/gksm.conf"
	put "$source/configs/tmpfiles.d/gksm.conf" "$prefix/lib/tmpfiles.d/gksm.conf"
	case $prefix in
	# systemd looks for units there; elsewhere nobody would start the vault's.
	/usr | /usr/*) cp "$source/configs/gksm.toml" "$work/gksm.toml" ;;
	*) sed 's/^mode = "service"$/# mode = "spawn"/' "$source/configs/gksm.toml" >"$work/gksm.toml" ;;
	esac
	put_config "$work/gksm.toml" "$sysconfdir/gksm/gksm.toml"
	put_config "$source/configs/domains.toml" "$sysconfdir/gksm/domains.toml"
	keep_old_releases
	drop_stale
	if [ "$dry_run" = no ]; then
		mv "$work/manifest" "$destdir$manifest.new"
		mv -f "$destdir$manifest.new" "$destdir$manifest"
	fi
	say "gKSM $release is installed under $prefix."
	if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
		say "next: systemd-sysusers && systemctl daemon-reload && systemctl enable --now gksmd"
	fi
}

# Files of an earlier release that this one does not have.
drop_stale() {
	[ -e "$destdir$manifest" ] && [ "$dry_run" = no ] || return 0
	awk -F '\t' 'NR == FNR { new[$3] = 1; next }
		($1 == "file" || $1 == "link") && !($3 in new) { print $3 }' \
		"$work/manifest" "$destdir$manifest" | while read -r path; do
		rm -f "$destdir$path"
	done
}

# Those of earlier installs stay while programs may have them mapped, and stay listed.
keep_old_releases() {
	[ -e "$destdir$manifest" ] && [ "$dry_run" = no ] || return 0
	awk -F '\t' '$1 == "tree" { print $3 }' "$destdir$manifest" | while read -r path; do
		if [ "$path" != "$libdir/$release" ] && [ -e "$destdir$path" ]; then
			record tree "$path"
		fi
	done
}

uninstall_all() {
	[ -e "$destdir$manifest" ] ||
		die "nothing is installed under $prefix ($destdir$manifest is not there)."
	kept=no
	tab=$(printf '\t')
	while IFS="$tab" read -r kind digest path; do
		case $kind in
		tree)
			case $path in
			"$libdir"/*/* | "$libdir"/ | *..*) die "$manifest is damaged at $path." ;;
			"$libdir"/*) act rm -rf "$destdir$path" ;;
			*) die "$manifest is damaged at $path." ;;
			esac
			;;
		config)
			if [ ! -e "$destdir$path" ]; then
				:
			elif [ "$(sum "$destdir$path")" = "$digest" ]; then
				act rm -f "$destdir$path"
			else
				say "$path was edited and is kept"
				kept=yes
			fi
			;;
		file | link) act rm -f "$destdir$path" ;;
		*) die "$manifest is damaged at $kind." ;;
		esac
	done <"$destdir$manifest"
	act rm -f "$destdir$manifest"
	for folder in "$libdir" "$prefix/include/gksm" "$prefix/share/doc/gksm" \
		"$sysconfdir/gksm/domains.d" "$sysconfdir/gksm"; do
		# Only if empty: domains that gksmctl wrote are the operator's.
		[ "$dry_run" = yes ] || rmdir "$destdir$folder" 2>/dev/null || :
	done
	say "gKSM is gone from $prefix."
	if [ "$kept" = no ] && [ -d "$destdir$sysconfdir/gksm" ]; then
		say "$sysconfdir/gksm is kept: it holds what install.sh did not put there"
	fi
}

prefix=/usr/local
sysconfdir=
destdir=
wheelhouse=
dry_run=no
uninstall=no
source=$(CDPATH='' cd "$(dirname "$0")" && pwd)
build=$source/build/release
python=${PYTHON:-python3}

while [ $# -gt 0 ]; do
	case $1 in
	--prefix | --sysconfdir | --destdir | --build | --wheelhouse)
		[ $# -ge 2 ] || die "$1 needs a directory; see --help."
		case $1 in
		--prefix) prefix=$2 ;;
		--sysconfdir) sysconfdir=$2 ;;
		--destdir) destdir=$2 ;;
		--build) build=$2 ;;
		--wheelhouse) wheelhouse=$2 ;;
		esac
		shift 2
		;;
	--dry-run) dry_run=yes && shift ;;
	--uninstall) uninstall=yes && shift ;;
	-h | --help) usage && exit 0 ;;
	*) usage >&2 && die "$1 is not an option." ;;
	esac
done

prefix=${prefix%/}
destdir=${destdir%/}
if [ -z "$sysconfdir" ]; then
	case $prefix in
	/usr | /usr/*) sysconfdir=/etc ;;
	*) sysconfdir=$prefix/etc ;;
	esac
fi
for value in "$prefix" "$sysconfdir" ${destdir:+"$destdir"}; do
	case $value in
	*[!A-Za-z0-9/._+-]*) die "\"$value\" has characters that scripts cannot carry; choose another." ;;
	/*) ;;
	*) die "\"$value\" is not an absolute path; give one." ;;
	esac
done
command -v "$python" >/dev/null || die "$python is not there; install Python 3.10 or later."
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$source/pyproject.toml")
libdir=$prefix/lib/gksm
manifest=$libdir/manifest
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

if [ "$uninstall" = yes ]; then
	uninstall_all
else
	install_all
fi
