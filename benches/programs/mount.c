// mount DEVICE TYPE: creates a superblock and a detached mount of it. Both end with this process.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

// From <linux/mount.h>, which musl does not have.
#define FSOPEN_CLOEXEC 1
#define FSCONFIG_SET_STRING 1
#define FSCONFIG_CMD_CREATE 6
#define FSMOUNT_CLOEXEC 1

static int check(long result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return (int)result;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fputs("usage: mount DEVICE TYPE\n", stderr);
        return 64;
    }
    int fs = check(syscall(SYS_fsopen, argv[2], FSOPEN_CLOEXEC), "fsopen");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_SET_STRING, "source", argv[1], 0), "fsconfig");
    check(syscall(SYS_fsconfig, fs, FSCONFIG_CMD_CREATE, NULL, NULL, 0), "fsconfig");
    check(syscall(SYS_fsmount, fs, FSMOUNT_CLOEXEC, 0), "fsmount");
    return 0;
}
