#!/bin/sh
# Prints CHANGELOG.md in the format of Debian's changelog:
#
#   sh deploy/deb/changelog.sh PACKAGE REVISION MAINTAINER
set -eu

package=$1 revision=$2 maintainer=$3
released=$(sed -n '/^## \[[0-9]/,$p' "$(dirname "$0")/../../CHANGELOG.md")

# Prints the end of an entry, the maintainer and the date. In CHANGELOG.md the date is in the first line of the entry.
end_entry() {
    printf '\n -- %s  %s\n' "$maintainer" "$date"
}
date=
while IFS= read -r line; do
    case $line in
    '## '*)
        if [ -n "$date" ]; then
            end_entry
            echo
        fi
        version=${line#*\[}
        echo "$package (${version%%\]*}-$revision) unstable; urgency=medium"
        date=$(LC_ALL=C date --utc --date "${line##* - }" +'%a, %d %b %Y %H:%M:%S +0000')
        ;;
    '### '*) printf '\n  [ %s ]\n' "${line#\#\#\# }" ;;
    '- '*) echo "  * ${line#- }" ;;
    ?*) echo "  $line" ;;
    esac
done <<EOF
$released
EOF
end_entry
