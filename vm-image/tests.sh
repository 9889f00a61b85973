#!/bin/sh
# Says in one line how many tests there are, and how many of them the guest runs:
#
#   sh vm-image/tests.sh
#
# What nextest counts as skipped is without the test programs that the profile leaves out as a whole.
# Fails where a test that is ignored on the host is run neither in the guest nor by `make engines SHORT=1`, where
# these profiles name tests that there aren't, and where the guest runs nothing of a program without a reason.
set -eu

here=$(dirname "$0")
configuration=$here/../.config/nextest.toml

# The tests that a filterset selects with a profile, one a line.
list() {
    cargo nextest list --locked --workspace --cargo-quiet --profile "$1" --ignore-default-filter \
        --message-format oneline --run-ignored "$2" --filterset "$3"
}

count() {
    printf %s "$1" | grep -c '' || true
}

# Run nowhere, but by hand: a delegate that Debian hasn't.
by_hand='test(a_delegate_that_has_pivoted_already)'
# In the form that CI runs.
elsewhere=$(list engines only "default() & ($(cat "$here/../tests/engines/short.filter"))")
forgotten=$(list vm only "not (default() | $by_hand)" | grep -vxF "$elsewhere" || true)
if [ -n "$forgotten" ]; then
    echo "$0: ignored, and neither in profile vm of .config/nextest.toml nor in engines' short form, so CI runs them nowhere:" >&2
    echo "$forgotten" >&2
    exit 1
fi
all=$(list vm all 'all()')

# What the profiles' filters name: a test program (".*", any) and a regular expression, a line for
# each alternative of one.
named() {
    awk '
        /^\[profile\.(engines|youki|vm)\]/ { is_ours = 1 }
        !is_ours || /^#/ { next }
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
                sub(/^test\(\/?/, "", token)
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

# A test that is renamed isn't left out unnoticed.
named | while read -r program name; do
    case $name in ^*) name=${name#^} ;; *) name=".*$name" ;; esac
    if ! printf '%s\n' "$all" | grep -Eq "::$program $name|^$program $name"; then
        echo "$0: a profile names $name of $program: there is no such test" >&2
        exit 1
    fi
done

# The programs of the suites that a list names, one a line.
programs() {
    printf '%s\n' "$1" | sed -n 's,^runcrust-tests::\([a-z0-9_]*\) .*,\1,p' | sort -u
}

# Comments of the profile name what it leaves out.
in_guest=$(programs "$(list vm all 'default()')")
reasons=$(sed -n '/^# In the guest/,/^\[profile\.vm\]/s/^#   //p' "$configuration")
for program in $(programs "$all" | grep -vxF "$in_guest"); do
    if ! printf '%s\n' "$reasons" | grep -qw "$program"; then
        echo "$0: the guest runs nothing of $program: profile vm names no reason" >&2
        exit 1
    fi
done

run=$(list vm all "${VM_FILTER:-default()}")
all=$(count "$all") run=$(count "$run")
echo "$all tests: $run of them are run in the guest, $((all - run)) are left out"
