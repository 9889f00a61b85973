#!/bin/sh
# Prepares a release on the current branch: everything but the push.
#
#   sh deploy/release.sh VERSION
#
# It sets the version in Cargo.toml, Cargo.lock and the manifests, gives the section [Unreleased] of CHANGELOG.md the
# version and today's date, and commits. It builds the files of the release from this commit, with the section as
# RELEASE-NOTES.md, and tags the commit. If a step fails, the branch is as it was before, unless somebody has changed it
# meanwhile.
set -eu

version=${1-}
cd "$(dirname "$0")/.."

fail() {
    echo "make release: $1" >&2
    exit 1
}

# Prints the section $1 of CHANGELOG.md without its heading.
section() {
    awk -v heading="## [$1]" '
        index($0, heading) == 1 { inside = 1; next }
        /^## \[/ { inside = 0 }
        inside { print }' CHANGELOG.md
}

printf '%s\n' "$version" | grep -Eqx '[0-9]+\.[0-9]+\.[0-9]+' ||
    fail "VERSION='$version' is not a version; hint: make release VERSION=0.2.0"
[ -z "$(git status --porcelain)" ] || fail 'the working tree has changes; hint: commit or remove them'
if git rev-parse --quiet --verify "refs/tags/v$version" >/dev/null; then
    fail "the tag v$version exists; hint: choose the next version"
fi
old=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
[ "$(printf '%s\n%s\n' "$old" "$version" | sort -V | tail -n 1)" = "$version" ] ||
    fail "version $version is older than $old, the version in Cargo.toml"
[ -n "$(section Unreleased | tr -d '[:space:]')" ] ||
    fail 'the section [Unreleased] of CHANGELOG.md is empty; hint: write what has changed for users'

before=$(git rev-parse HEAD)
release=$before
# The build takes minutes, in which this tree may be changed.
take_back() {
    changes=
    if [ "$release" != "$before" ]; then
        changes=$(git status --porcelain)
    fi
    if [ "$(git rev-parse HEAD)$changes" = "$release" ]; then
        git reset --quiet --hard "$before"
    else
        echo "make release: failed, and the tree was changed meanwhile; hint: take back the commit $release yourself" >&2
    fi
}
trap take_back EXIT
trap 'exit 1' HUP INT TERM

sed -i "0,/^version = \".*\"/s//version = \"$version\"/" Cargo.toml
cargo update --quiet --workspace --offline
sed -i -E "s,(image: localhost/[a-z-]+):.*,\1:$version," deploy/kubernetes/*/*.yaml
sed -i "s/^## \[Unreleased\]\$/## [Unreleased]\n\n## [$version] - $(date --utc +%F)/" CHANGELOG.md
git commit --quiet --all --message "release: $version"
release=$(git rev-parse HEAD)

# The time stamps of the released files are those of the new commit. The build must not inherit the flags and the
# jobserver of the make that runs this script.
unset SOURCE_DATE_EPOCH MAKEFLAGS MAKELEVEL MFLAGS
"${MAKE:-make}" dist
section "$version" >target/dist/RELEASE-NOTES.md
git tag --annotate --cleanup=whitespace --message "runcrust $version" "v$version"
trap - EXIT

cat <<END

The commit 'release: $version' and the tag v$version are made. Nothing was pushed. The files are in target/dist/.
Before you publish them: make release-test
To publish:              git push origin HEAD v$version
                         and upload target/dist/*, with RELEASE-NOTES.md as the text of the release
To take it back:         git tag --delete v$version && git reset --hard $before
END
