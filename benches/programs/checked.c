// A wrapper with the system calls of one that only trusts files of root: it reads the attributes of every component of
// the paths of its configuration and of its delegate, and reads the configuration. It ignores what it has read.
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

extern char **environ;

static int read_attributes(const char *path) {
    char part[PATH_MAX];
    struct stat attributes;
    for (const char *end = path; end; end = strchr(end + 1, '/')) {
        size_t length = end == path ? 1 : (size_t)(end - path);
        memcpy(part, path, length);
        part[length] = 0;
        if (lstat(part, &attributes) != 0) {
            return -1;
        }
    }
    return lstat(path, &attributes);
}

int main(int argc, char **argv) {
    static char delegate[] = DELEGATE;
    static char text[4096];
    int file = -1;
    if (argc < 1 || read_attributes(CONFIGURATION) != 0 || (file = open(CONFIGURATION, O_RDONLY | O_CLOEXEC)) < 0) {
        perror(CONFIGURATION);
        return 64;
    }
    while (read(file, text, sizeof text) > 0) {
    }
    if (read_attributes(delegate) == 0) {
        argv[0] = delegate;
        execve(delegate, argv, environ);
    }
    perror(delegate);
    return 127;
}
