// io read|write sequential|random FILE: reads or writes a whole file, sequentially in blocks of 128 KiB, or randomly in
// blocks of 4 KiB, and prints how many nanoseconds it took.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static long long now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

// xorshift, which gives the same offsets in every run.
static uint64_t next_random(void) {
    static uint64_t state = 88172645463325252ULL;
    state ^= state << 13;
    state ^= state >> 7;
    return state ^= state << 17;
}

int main(int argc, char **argv) {
    static char block[128 << 10];
    struct stat file;
    if (argc != 4) {
        fputs("usage: io read|write sequential|random FILE\n", stderr);
        return 64;
    }
    int writes = strcmp(argv[1], "write") == 0, random = strcmp(argv[2], "random") == 0;
    int fd = open(argv[3], (writes ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
    // Writes out what was written before, so that this isn't part of the measured time.
    if (fd < 0 || fstat(fd, &file) < 0 || syncfs(fd) < 0) {
        perror(argv[3]);
        return 1;
    }
    memset(block, 'x', sizeof block);
    ssize_t size = random ? 4 << 10 : sizeof block;
    off_t blocks = file.st_size / size;
    long long before = now();
    for (off_t i = 0; i < blocks; i++) {
        off_t at = size * (off_t)(random ? next_random() % (uint64_t)blocks : (uint64_t)i);
        ssize_t done = writes ? pwrite(fd, block, size, at) : pread(fd, block, size, at);
        if (done != size) {
            perror(argv[3]);
            return 1;
        }
    }
    printf("%lld\n", now() - before);
    return 0;
}
