#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# Loads build/release/libgksm.so, as it was built on this machine, in a root file system with
# glibc 2.31 (Debian 11), where dlopen and threads still lived in libraries of their own. The
# simulated driver and the programs are compiled against that C library, for they need not be
# portable. Needs apt, the network (or APT_MIRROR) and the right to chroot.
set -euo pipefail
cd "$(dirname "$0")/../.."

# This machine's own Debian mirror; APT_MIRROR names one where there is none.
mirror=${APT_MIRROR:-$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' |
	grep '/debian/*$' | head -n 1)}
[[ $mirror ]] || {
	echo "no Debian mirror is set up here: name one with APT_MIRROR" >&2
	exit 1
}
work=$PWD/build/glibc-2.31-root
root=$work/root
here=tests/containers
flavour=build/glibc-2.31

# apt for another release, with nothing of this machine's own state.
apt() {
	apt-get -q -o Dir::Etc::SourceList="$work/sources.list" -o Dir::Etc::SourceParts=- \
		-o Dir::State="$work/state" -o Dir::State::status="$work/status" \
		-o Dir::Cache="$work/cache" -o APT::Sandbox::User= -o Acquire::Retries=2 \
		-o Acquire::Languages=none -o Acquire::Check-Valid-Until=false "$@"
}

# Repeated runs use what the first one fetched.
fetch_root() {
	[[ -e $work/.done ]] && return
	rm -rf "$work"
	mkdir -p "$work"/{state/lists/partial,cache/archives/partial,debs} "$root"
	: >"$work/status"
	local key=/usr/share/keyrings/debian-archive-keyring.gpg
	if [[ ! -e $key ]]; then
		((EUID == 0)) && apt-get -qy install debian-archive-keyring
		[[ -e $key ]] || {
			echo "$key is missing: install debian-archive-keyring" >&2
			exit 1
		}
	fi
	echo "deb [arch=amd64 signed-by=$key] $mirror bullseye main" >"$work/sources.list"
	apt update
	(cd "$work/debs" && apt download libc6 libc6-dev libc-bin linux-libc-dev libcrypt-dev)
	local package
	for package in "$work"/debs/*.deb; do
		dpkg-deb --extract "$package" "$root"
	done
	# Absolute links would lead out of the root when seen from here.
	local link
	find "$root" -type l -lname '/*' -print0 | while IFS= read -r -d '' link; do
		ln -sfnr "$root$(readlink "$link")" "$link"
	done
	touch "$work/.done"
}

if ((EUID == 0)); then
	into=(chroot "$root")
else
	into=(unshare --user --map-root-user chroot "$root")
fi

old_gcc="gcc --sysroot=$root -B$root/usr/lib/x86_64-linux-gnu -B$root/lib/x86_64-linux-gnu"
compile() {
	$old_gcc -std=gnu11 -O2 -g -D_GNU_SOURCE -isystem build/cuda/13/include "$@"
}

fetch_root
make build/release/libgksm.so
make FLAVOUR=glibc-2.31 CC="$old_gcc" $flavour/simcuda/libcuda.so.1

mkdir -p "$root"/opt/{gksm,bin,driver} "$root"/{tmp,proc,dev}
cp build/release/libgksm.so "$root/opt/gksm/"
cp $flavour/simcuda/libcuda.so.1 "$root/opt/driver/"
# One finds the driver's functions itself, as the CUDA runtime does; one is linked with
# -lcuda and nothing else, so that no libdl and no libpthread is there before the driver.
compile -DBY_NAME -o "$root/opt/bin/by-name" $here/program.c -ldl
compile -o "$root/opt/bin/linked" $here/program.c -L$flavour/simcuda -l:libcuda.so.1 \
	-Wl,--allow-shlib-undefined
echo "glibc in the root: $("${into[@]}" /lib/x86_64-linux-gnu/libc.so.6 | head -n 1)"

# EXPECTATION PROGRAM: what program.c is to find.
run() {
	timeout 60 env GKSM_SOCKET=/nowhere SIMCUDA_DIR=/tmp/simcuda SIMCUDA_VRAM=256M \
		"${into[@]}" /lib64/ld-linux-x86-64.so.2 --preload /opt/gksm/libgksm.so \
		"/opt/bin/$2" "$1"
	echo "$2: $1, as it should"
}

rm -f "$root/etc/ld.so.cache"
run no-driver by-name
run no-driver linked
echo /opt/driver >"$root/etc/ld.so.conf"
rm -rf "$root/tmp/simcuda" # what another build of simcuda left there is of no use
mkdir -p "$root/tmp/simcuda"
# Both formats of the loader's cache.
for format in compat new; do
	"${into[@]}" /sbin/ldconfig -c $format
	run works by-name
	run works linked
done
echo "glibc 2.31: all as it should"
