#!/bin/sh
# Builds the Debian packages:
#
#   sh deploy/deb/build.sh TREE LICENSES OUT
#
# TREE is what `make install PREFIX=/usr` made: its files go into one of the packages each. LICENSES is
# a file with those of what is linked in. Files are as old as SOURCE_DATE_EPOCH says, and the same
# files give the same packages.
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

# The file, compressed and with no name or time in it, below the package's directory.
compressed() {
    mkdir -p "$(dirname "$2")"
    gzip -9 --no-name <"$1" >"$2"
    chmod 0644 "$2"
}

# What is crust_ops' goes into its package, the rest into the runtime's; but for crust-csi, which is run
# from its image, and crustlet, which is for testbeds.
sort_files() {
    (cd "$tree" && find . ! -type d) | while IFS= read -r file; do
        case $file in
        *crust-csi* | *crustlet*) continue ;;
        *crust_ops* | */systemd/*) package=crust-ops ;;
        *) package=runcrust ;;
        esac
        # Debian's place for those of packages.
        to=$scratch/$package/$(echo "$file" | sed s,zsh/site-functions,zsh/vendor-completions,)
        mkdir -p "$(dirname "$to")"
        case $file in
        */man/*) compressed "$tree/$file" "$to.gz" ;;
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
    compressed "$licenses" "$doc/third-party-licenses.gz"
    compressed "$root/CHANGELOG.md" "$doc/changelog.gz"
    sh "$here/changelog.sh" "$package" "$revision" "$maintainer" >"$scratch/changelog"
    compressed "$scratch/changelog" "$doc/changelog.Debian.gz"
    install -m 0644 "$here/$package/lintian-overrides" "$files/usr/share/lintian/overrides/$package"

    # Those that both have, and the package's own.
    for script in "$here/prerm" "$here/$package/postinst" "$here/$package/postrm"; do
        if [ -e "$script" ]; then
            install -m 0755 -t "$files/DEBIAN" "$script"
        fi
    done
    (cd "$files" && find etc -type f) | sed 's,^,/,' | LC_ALL=C sort >"$files/DEBIAN/conffiles"
    (cd "$files" && find . -path ./DEBIAN -prune -o -type f -printf '%P\n') | LC_ALL=C sort |
        (cd "$files" && xargs md5sum) >"$files/DEBIAN/md5sums"
    # As dpkg-gencontrol counts, on whatever file system: a KiB for what is no file.
    size=$(cd "$files" && find . -path ./DEBIAN -prune -o -type f -printf '%s\n' -o -printf '1\n' |
        awk '{ sum += int(($1 + 1023) / 1024) } END { print sum }')
    sed -e "s/@VERSION@/$version/" -e "s/@ARCHITECTURE@/$architecture/" -e "s/@SIZE@/$size/" \
        -e "s/@MAINTAINER@/$maintainer/" "$here/$package/control" >"$files/DEBIAN/control"
    chmod 0644 "$files"/DEBIAN/control "$files"/DEBIAN/conffiles "$files"/DEBIAN/md5sums
    # One thread: with more, xz cuts otherwise.
    dpkg-deb --root-owner-group -Zxz --threads-max=1 --build "$files" \
        "$out/${package}_${version}_$architecture.deb"
}

rm -f "$out"/*.deb
sort_files
mkdir -p "$scratch/runcrust/usr/share/doc/runcrust"
cp "$root"/docs/*.md "$scratch/runcrust/usr/share/doc/runcrust"
build runcrust
build crust-ops
