// A wrapper that believes root's files alone: it looks at each part of the way to its configuration and to the delegate,
// and reads the configuration, as far as calls go. What it finds it doesn't judge.
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int look(const char *path) {
    char part[PATH_MAX];
    struct stat found;
    for (const char *end = path; end; end = strchr(end + 1, '/')) {
        size_t length = end == path ? 1 : (size_t)(end - path);
        memcpy(part, path, length);
        part[length] = 0;
        if (lstat(part, &found) != 0) {
            return -1;
        }
    }
    return lstat(path, &found);
}

int main(int argc, char **argv) {
    static char delegate[] = DELEGATE;
    static char text[4096];
    int file = -1;
    if (argc < 1 || look(CONFIGURATION) != 0 || (file = open(CONFIGURATION, O_RDONLY | O_CLOEXEC)) < 0) {
        perror(CONFIGURATION);
        return 64;
    }
    while (read(file, text, sizeof text) > 0) {
    }
    if (look(delegate) == 0) {
        argv[0] = delegate;
        execve(delegate, argv, environ);
    }
    perror(delegate);
    return 127;
}
