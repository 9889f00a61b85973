#!/bin/sh
# Prints in one line how many tests there are, and how many of them the guest runs:
#
#   sh vm-image/tests.sh
#
# nextest's own count of skipped tests doesn't include test programs that the profile leaves out as a whole.
#
# Fails if
# - a test that is ignored on the host is run neither in the guest nor by `make engines SHORT=1`, with any delegate,
#   unless it is among those that only `make vm-test-all` runs;
# - the filter of a profile names a test that does not exist;
# - the guest runs no test of a program, and the profile gives no reason.
set -eu

here=$(dirname "$0")
configuration=$here/../.config/nextest.toml

# Prints the tests that the filterset $3 selects with the profile $1, one on each line. $2 is nextest's --run-ignored.
list() {
    cargo nextest list --locked --workspace --cargo-quiet --profile "$1" --ignore-default-filter \
        --message-format oneline --run-ignored "$2" --filterset "$3"
}

count() {
    printf %s "$1" | grep -c '' || true
}

# Only run by hand, with a delegate that no Debian release has.
by_hand='test(mounting_after_pivot_root)'
# Tests of shares need the guest's kernel and a server, and many wait for the kernel to give up a server. CI runs half of
# them, and `make vm-test-all` runs all.
shares='binary(nfs) | binary(csi) & test(/^nfs::servers::/) | test(requirements_on_shares) | test(the_example_with_shares)'
# The part of `make engines` that CI runs.
in_engines=$(list engines only "default() & ($(cat "$here/../tests/engines/short.filter"))")
in_guest=$(list vm all 'default()')
# Removes the delegate from names of tests.
without_delegate() {
    sed -E 's/::(runc|crun)$//'
}
in_ci=$(printf '%s\n' "$in_engines" "$in_guest" | without_delegate)
ignored=$(list vm only "not ($by_hand | $shares)" | without_delegate | sort -u)
forgotten=$(printf '%s\n' "$ignored" | grep -vxF "$in_ci" || true)
if [ -n "$forgotten" ]; then
    echo "$0: CI runs these ignored tests nowhere: select them in profile vm or engines of .config/nextest.toml" >&2
    echo "$forgotten" >&2
    exit 1
fi
all=$(list vm all 'all()')

# Prints what the filters of the profiles name, a line for each alternative of a regular expression: the test program
# (".*" if the filter names none), and the regular expression.
filter_names() {
    awk '
        /^#/ { next }
        {
            for (rest = $0; match(rest, /binary\([^)]*\)|test\(\/[^\/]*\/\)|test\([^\/()]*\)/); ) {
                before = substr(rest, 1, RSTART - 1)
                token = substr(rest, RSTART, RLENGTH)
                rest = substr(rest, RSTART + RLENGTH)
                if (before !~ /[&-] *$/ || before ~ /package\(/) program = ".*"
                if (sub(/^binary\(/, "", token)) {
                    sub(/\)$/, "", token)
                    program = token
                    print program, ""
                    continue
                }
                sub(/^test\([=\/]?/, "", token)
                sub(/\/?\)$/, "", token)
                head = tail = ""
                if (match(token, /\([^()]*\)/)) {
                    head = substr(token, 1, RSTART - 1)
                    tail = substr(token, RSTART + RLENGTH)
                    token = substr(token, RSTART + 1, RLENGTH - 2)
                }
                count = split(token, names, "|")
                for (i = 1; i <= count; i++) print program, head names[i] tail
            }
        }' "$configuration"
}

# Otherwise a renamed test would silently be left out.
filter_names | while read -r program name; do
    case $name in ^*) name=${name#^} ;; *) name=".*$name" ;; esac
    if ! printf '%s\n' "$all" | grep -Eq "::$program $name|^$program $name"; then
        echo "$0: .config/nextest.toml names the test $name of the program $program, which does not exist" >&2
        exit 1
    fi
done

# Prints the test programs of the package runcrust-tests in the list $1, one on each line.
programs() {
    printf '%s\n' "$1" | sed -n 's,^runcrust-tests::\([a-z0-9_]*\) .*,\1,p' | sort -u
}

# A comment above the profile lists what it leaves out, and why.
programs_in_guest=$(programs "$in_guest")
reasons=$(sed -n '/^# In the guest/,/^\[profile\.vm\]/s/^#   //p' "$configuration")
for program in $(programs "$all" | grep -vxF "$programs_in_guest"); do
    if ! printf '%s\n' "$reasons" | grep -qw "$program"; then
        echo "$0: the guest runs no test of $program: add the reason to the comment above profile vm in $configuration" >&2
        exit 1
    fi
done

run=$in_guest
if [ -n "${VM_FILTER:-}" ]; then
    run=$(list vm all "$VM_FILTER")
fi
all=$(count "$all") run=$(count "$run")
echo "$all tests: $run of them run in the guest, $((all - run)) are left out"
