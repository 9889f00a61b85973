// starter COUNT PROGRAM ARGUMENT...: starts a program so many times, one after the other, and prints the
// nanoseconds from before each start until its end was seen.
//
// It is small and starts by vfork, so that the parent's pages, which a fork would copy, have no part in it.
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// A stream of our own, and nothing in its place for those that are started.
static FILE *kept(int stream) {
    int own = fcntl(stream, F_DUPFD_CLOEXEC, 10);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (own < 0 || null < 0 || dup2(null, stream) < 0) {
        return NULL;
    }
    close(null);
    return fdopen(own, "w");
}

int main(int argc, char **argv) {
    long count = argc < 3 ? 0 : strtol(argv[1], NULL, 10);
    if (count < 1) {
        fputs("usage: starter COUNT PROGRAM ARGUMENT...\n", stderr);
        return 64;
    }
    // A container that was created keeps what it inherited: not the pipes that are read until their end.
    FILE *out = kept(STDOUT_FILENO), *err = kept(STDERR_FILENO);
    if (!out || !err) {
        perror("starter");
        return 1;
    }
    for (long i = 0; i < count; i++) {
        pid_t pid;
        int status;
        long long before = now();
        int error = posix_spawn(&pid, argv[2], NULL, NULL, argv + 2, environ);
        if (error || waitpid(pid, &status, 0) != pid) {
            fprintf(err, "starter: %s: error %d\n", argv[2], error);
            return 1;
        }
        long long after = now();
        if (status) {
            fprintf(err, "starter: %s: ended with status %#x\n", argv[2], status);
            return 1;
        }
        fprintf(out, "%lld\n", after - before);
    }
    return fclose(out) ? 1 : 0;
}
