// starter COUNT PROGRAM ARGUMENT...: runs a program COUNT times, one after the other. For each run it prints the
// nanoseconds from before the start until the end of the program was noticed.
//
// It is small and starts programs with vfork, because a fork would copy the page tables of the parent.
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

// Moves a stream to a descriptor that started programs don't inherit, and opens /dev/null in its place.
static FILE *move_stream(int stream) {
    int moved = fcntl(stream, F_DUPFD_CLOEXEC, 10);
    int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (moved < 0 || null < 0 || dup2(null, stream) < 0) {
        return NULL;
    }
    close(null);
    return fdopen(moved, "w");
}

int main(int argc, char **argv) {
    long count = argc < 3 ? 0 : strtol(argv[1], NULL, 10);
    if (count < 1) {
        fputs("usage: starter COUNT PROGRAM ARGUMENT...\n", stderr);
        return 64;
    }
    // A created container keeps the descriptors that it inherits. If it inherited these pipes, their reader would wait
    // for the end of the container.
    FILE *out = move_stream(STDOUT_FILENO), *err = move_stream(STDERR_FILENO);
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
