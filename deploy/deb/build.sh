#!/bin/sh
# Builds the Debian packages:
#
#   sh deploy/deb/build.sh TREE LICENSES OUT
#
# TREE is the directory that `make install-built PREFIX=/usr` installed into. LICENSES is a file with the licences of the
# crates that are linked in. The time stamps in the packages are SOURCE_DATE_EPOCH, and the same files give the same
# packages.
set -eu

tree=$1 licenses=$2 out=$3
here=$(dirname "$0")
root=$here/../..
revision=1
maintainer='runcrust maintainers <maintainers@crust.dev>'
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$root/Cargo.toml" | head -n 1)-$revision
architecture=$(dpkg --print-architecture)

umask 022
mkdir -p "$out"
scratch=$(mktemp --directory "$out/new.XXXXXX")
trap 'rm -rf --one-file-system "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
chmod 0755 "$scratch"

# Compresses the file $1 into $2, without its name and time stamp.
compress_file() {
    mkdir -p "$(dirname "$2")"
    gzip -9 --no-name <"$1" >"$2"
    chmod 0644 "$2"
}

# Copies the files of crust_ops into the package crust-ops, and the others into the package runcrust. crust-csi, which
# is run from its image, and crustlet, which is for testbeds, are in no package.
sort_files() {
    (cd "$tree" && find . ! -type d) | while IFS= read -r file; do
        case $file in
        *crust-csi* | *crustlet*) continue ;;
        *crust_ops* | */systemd/*) package=crust-ops ;;
        *) package=runcrust ;;
        esac
        # Debian has another directory for zsh completions that come with packages.
        to=$scratch/$package/$(echo "$file" | sed s,zsh/site-functions,zsh/vendor-completions,)
        mkdir -p "$(dirname "$to")"
        case $file in
        */man/*) compress_file "$tree/$file" "$to.gz" ;;
        *) cp --preserve=mode --no-dereference "$tree/$file" "$to" ;;
        esac
    done
}

build() {
    package=$1
    files=$scratch/$package
    doc=$files/usr/share/doc/$package
    mkdir -p "$files/DEBIAN" "$doc" "$files/usr/share/lintian/overrides"
    install -m 0644 "$here/copyright" "$doc/copyright"
    compress_file "$licenses" "$doc/third-party-licenses.gz"
    compress_file "$root/CHANGELOG.md" "$doc/changelog.gz"
    sh "$here/changelog.sh" "$package" "$revision" "$maintainer" >"$scratch/changelog"
    compress_file "$scratch/changelog" "$doc/changelog.Debian.gz"
    install -m 0644 "$here/$package/lintian-overrides" "$files/usr/share/lintian/overrides/$package"

    # The maintainer scripts. Both packages have the same prerm.
    for script in "$here/prerm" "$here/$package/postinst" "$here/$package/postrm"; do
        if [ -e "$script" ]; then
            install -m 0755 -t "$files/DEBIAN" "$script"
        fi
    done
    (cd "$files" && find etc -type f) | sed 's,^,/,' | LC_ALL=C sort >"$files/DEBIAN/conffiles"
    (cd "$files" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n') | LC_ALL=C sort |
        (cd "$files" && xargs md5sum) >"$files/DEBIAN/md5sums"
    # In KiB, computed as dpkg-gencontrol does it, which is independent of the file system: anything but a regular file
    # counts as 1 KiB.
    size=$(cd "$files" && find . -path ./DEBIAN -prune -o -type f -printf '%s\n' -o -printf '1\n' |
        awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@SIZE@/$size/" \
        -e "s/@MAINTAINER@/$maintainer/" "$here/$package/control" >"$files/DEBIAN/control"
    chmod 0644 "$files"/DEBIAN/control "$files"/DEBIAN/conffiles "$files"/DEBIAN/md5sums
    # One thread, because the output of xz depends on the number of threads.
    dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$files" \
        "$out/${package}_${version}_$architecture.deb"
}

rm -f "$out"/*.deb
sort_files
mkdir -p "$scratch/runcrust/usr/share/doc/runcrust"
cp "$root"/docs/*.md "$scratch/runcrust/usr/share/doc/runcrust"
build runcrust
build crust-ops
