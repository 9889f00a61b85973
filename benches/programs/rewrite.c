// rewrite FILE: replaces a file with a copy of itself: read, write, fsync, rename. Every program that changes a config
// and never leaves a partial one does at least this.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void check(int worked, const char *what) {
    if (!worked) {
        perror(what);
        exit(1);
    }
}

int main(int argc, char **argv) {
    char new[4096];
    struct stat old;
    if (argc != 2 || snprintf(new, sizeof new, "%s.new", argv[1]) >= (int)sizeof new) {
        fputs("usage: rewrite FILE\n", stderr);
        return 64;
    }
    int from = open(argv[1], O_RDONLY | O_CLOEXEC);
    check(from >= 0 && fstat(from, &old) == 0, argv[1]);
    char *bytes = malloc(old.st_size + 1);
    check(bytes && read(from, bytes, old.st_size + 1) == old.st_size, "read");
    int to = open(new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, old.st_mode & 07777);
    check(to >= 0, new);
    check(write(to, bytes, old.st_size) == old.st_size, "write");
    check(fsync(to) == 0 && rename(new, argv[1]) == 0, "rename");
    return 0;
}
