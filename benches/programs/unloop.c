// unloop /dev/loopN...: removes detached loop devices from the kernel. losetup only detaches them.
#include <fcntl.h>
#include <stdio.h>
#include <sys/ioctl.h>

// From <linux/loop.h>, which musl does not have.
#define LOOP_CTL_REMOVE 0x4C81

int main(int argc, char **argv) {
    int control = open("/dev/loop-control", O_RDWR | O_CLOEXEC);
    if (control < 0) {
        perror("/dev/loop-control");
        return 1;
    }
    for (int i = 1; i < argc; i++) {
        int number;
        // Fails if another program has attached the device again.
        if (sscanf(argv[i], "/dev/loop%d", &number) != 1 || ioctl(control, LOOP_CTL_REMOVE, number) < 0) {
            perror(argv[i]);
        }
    }
    return 0;
}
