#!/bin/sh
# Starts and stops the node's services for its systemctl, because the node has no systemd:
#
#   sh tests/e2e/services.sh
#
# A service is a unit in /etc/systemd/system with ExecStart= and, optionally, ExecStartPost=. As with `Restart=always`, it
# is started again whenever it ends, until it is stopped. Its output goes to /var/log/services.
#
# A request is a line `ANSWER VERB SERVICE SIGNAL` in the FIFO /run/services/requests. ANSWER is a directory that gets a
# file `status` when the request is done. In /run/services, the file SERVICE.wanted exists until the service is stopped,
# and while it runs SERVICE.pid, with its process id, and SERVICE.started, with the time since the boot in microseconds.
set -u

state=/run/services
logs=/var/log/services

# Prints the value of the key $2 of the unit $1. A backslash at the end of a line continues it.
value() {
    sed -n -e ':line' -e '/\\$/N' -e 's/\\\n//' -e 't line' -e "s/^$2=//p" "/etc/systemd/system/$1.service"
}

# Runs a service until it is stopped.
supervise() {
    while [ -e "$state/$1.wanted" ]; do
        echo "$(date '+%F %T') starts" >>"$logs/$1.log"
        # Before the service starts, because `runcrust install --restart` compares this time with those of files.
        awk '{ printf "%.0f\n", $1 * 1000000 }' /proc/uptime >"$state/$1.started"
        # In a session of its own, so that a signal to the scripts' process group does not end it.
        setsid sh -c "exec $(value "$1" ExecStart)" </dev/null >>"$logs/$1.log" 2>&1 3>&- &
        echo $! >"$state/$1.pid.new"
        mv "$state/$1.pid.new" "$state/$1.pid"
        wait $!
        echo "$(date '+%F %T') ended with status $?" >>"$logs/$1.log"
        rm -f "$state/$1.pid"
        sleep 0.5
    done
}

start() {
    if [ ! -e "$state/$1.wanted" ]; then
        : >"$state/$1.wanted"
        supervise "$1" &
        echo $! >"$state/$1.supervisor"
    fi
    until [ -e "$state/$1.pid" ]; do
        sleep 0.1
    done
    # Without an ExecStartPost= this is no command, and succeeds.
    sh -c "$(value "$1" ExecStartPost)" </dev/null >/dev/null 2>&1 3>&-
}

# Sends a service a signal.
signal() {
    if [ -e "$state/$1.pid" ]; then
        kill -s "$2" "$(cat "$state/$1.pid")"
    fi
}

# As systemd does, kills a service that has not ended in time.
stop() {
    if [ ! -e "$state/$1.wanted" ]; then
        return
    fi
    rm "$state/$1.wanted"
    supervisor=$(cat "$state/$1.supervisor")
    told='' attempts=0
    while kill -0 "$supervisor" 2>/dev/null; do
        pid=$(cat "$state/$1.pid" 2>/dev/null)
        attempts=$((attempts + 1))
        if [ "$attempts" -gt 300 ]; then
            signal "$1" KILL
        elif [ "$pid" != "$told" ]; then
            # Once: on a second SIGTERM the API server exits at once.
            signal "$1" TERM
            told=$pid
        fi
        sleep 0.1
    done
    wait "$supervisor"
    return 0
}

mkdir -p "$state" "$logs"
mkfifo "$state/requests"
# Open for writing, too, so that read waits for the next request instead of seeing an end of file.
exec 3<>"$state/requests"
while read -r answer verb service signal <&3; do
    case $verb in
    start | stop) "$verb" "$service" ;;
    restart) stop "$service" && start "$service" ;;
    kill) signal "$service" "$signal" ;;
    *) false ;;
    esac
    status=$?
    # The client may have been killed, and its directory be gone.
    if [ -d "$answer" ]; then
        echo "$status" >"$answer/status.new" && mv "$answer/status.new" "$answer/status"
    fi
done
