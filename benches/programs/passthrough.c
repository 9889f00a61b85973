// The smallest wrapper: it only executes the delegate, with the arguments that it got.
#include <stdio.h>
#include <unistd.h>

extern char **environ;

int main(int argc, char **argv) {
    static char delegate[] = DELEGATE;
    if (argc < 1) {
        return 64;
    }
    argv[0] = delegate;
    execve(delegate, argv, environ);
    perror(delegate);
    return 127;
}
