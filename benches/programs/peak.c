// peak PROGRAM ARGUMENT...: runs a program until it executes another one, and prints its peak resident set at that
// moment, in kB.
//
// ru_maxrss of wait4(2) would be the largest of three peaks: that of the parent, whose pages a vfork shares, that of
// the program, and that of the program that it executes. So the program is stopped at the entry of its own execve(2),
// and its peak is read from /proc.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void report(pid_t pid) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/%d/status", pid);
    FILE *status = fopen(path, "r");
    if (!status) {
        fail(path);
    }
    while (fgets(line, sizeof line, status)) {
        if (strncmp(line, "VmHWM:", 6) == 0) {
            printf("%ld\n", strtol(line + 6, NULL, 10));
        }
    }
    fclose(status);
}

int main(int argc, char **argv) {
    if (argc < 2) {
        fputs("usage: peak PROGRAM ARGUMENT...\n", stderr);
        return 64;
    }
    pid_t pid = fork();
    if (pid < 0) {
        fail("fork");
    }
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        execv(argv[1], argv + 1);
        fail(argv[1]);
    }
    int state;
    if (waitpid(pid, &state, 0) != pid || !WIFSTOPPED(state)) {
        fail("waitpid");
    }
    ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL);
    int execs = 0;
    for (;;) {
        if (ptrace(PTRACE_SYSCALL, pid, NULL, NULL) < 0) {
            fail("ptrace");
        }
        if (waitpid(pid, &state, 0) != pid || WIFEXITED(state) || WIFSIGNALED(state)) {
            fputs("peak: the program ended before it executed another one\n", stderr);
            return 1;
        }
        if (state >> 8 == (SIGTRAP | PTRACE_EVENT_EXEC << 8)) {
            execs++;
            continue;
        }
        if (WSTOPSIG(state) != (SIGTRAP | 0x80) || execs != 1) {
            continue;
        }
        struct __ptrace_syscall_info call;
        if (ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof call, &call) < 0) {
            fail("PTRACE_GET_SYSCALL_INFO");
        }
        int executes = call.entry.nr == SYS_execve || call.entry.nr == SYS_execveat;
        if (call.op == PTRACE_SYSCALL_INFO_ENTRY && executes) {
            report(pid);
            return 0;
        }
    }
}
