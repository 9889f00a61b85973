# Sourced by a script: runs a command in mount and pid namespaces of its own that end with the script.
#
#   contained COMMAND [ARGUMENT…]    runs it, and returns its exit status
#   end_contained                    for the EXIT trap: ends it, and waits until all its processes have ended
#
# The script has to exit on a signal: trap 'exit 1' HUP INT TERM. The command is in the background,
# because a shell that runs a program in the foreground handles a signal only after the program ends. It is a
# session of its own, so that a terminal's signals reach the script alone, and the command gets one SIGTERM
# from here: nextest takes a second signal for an order to kill its tests. A script that is killed can't
# send it: then the kernel kills unshare(1), and with it every process in the namespaces.

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
    # The whole group, as unshare(1) blocks SIGTERM, and a namespace's first process ignores it unless it has a
    # handler. Before setsid(1) there is no group yet.
    kill -s TERM -- "-$contained_pid" 2>/dev/null || kill -s TERM "$contained_pid" 2>/dev/null || true
    wait "$contained_pid" || true
}
