# Runs a command in mount and pid namespaces of its own, which end with the script that sources this file:
#
#   contained COMMAND [ARGUMENT…]    runs the command, and returns its exit status
#   end_contained                    for the EXIT trap: stops the command, and waits until all its processes have ended
#
# The script must exit on a signal: trap 'exit 1' HUP INT TERM.
#
# The command runs in the background, because a shell that runs a program in the foreground handles a signal only after
# the program has ended. It has a session of its own, so that a terminal's signals only reach the script, and the
# command gets exactly one SIGTERM from here: on a second signal nextest kills its tests. If the script is killed by
# SIGKILL, the kernel kills unshare(1), and with it every process in the namespaces.

contained_pid=

contained() {
    setsid setpriv --pdeathsig KILL \
        unshare --mount --propagation private --pid --fork --kill-child "$@" &
    contained_pid=$!
    contained_status=0
    wait "$contained_pid" || contained_status=$?
    contained_pid=
    return "$contained_status"
}

end_contained() {
    if [ -z "$contained_pid" ]; then
        return
    fi
    # To the whole process group, because unshare(1) blocks SIGTERM, and the first process of a pid namespace ignores it
    # unless it has a handler. The second kill is for the time before setsid(1) has made the group.
    kill -s TERM -- "-$contained_pid" 2>/dev/null || kill -s TERM "$contained_pid" 2>/dev/null || true
    wait "$contained_pid" || true
}
