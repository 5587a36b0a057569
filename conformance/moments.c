/* Mappings at the moments that matter: made before and after what empties the store, with the
 * descriptor open and closed. Prints nothing where all is well; exit 1 and one line otherwise.
 *
 * usage: moments FILE COMMAND...    the command empties the store of the node. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LENGTH = 8 << 20 };

static unsigned char wanted(size_t at) { return (unsigned char)(at * 31 + (at >> 12) + 7); }

static void fail(const char *what, const char *where) {
    printf("%s: %s: %s\n", where, what, errno ? strerror(errno) : "wrong");
    exit(1);
}

static void compare(const unsigned char *bytes, const char *when, const char *where) {
    for (size_t at = 0; at < LENGTH; at++) {
        if (bytes[at] != wanted(at)) {
            printf("%s: %s: byte %zu is %u and not %u\n", where, when, at, bytes[at], wanted(at));
            exit(1);
        }
    }
}

static void run(char **command) {
    pid_t child = fork();
    if (child == 0) {
        int quiet = open("/dev/null", O_WRONLY);
        dup2(quiet, 1);
        execvp(command[0], command);
        _exit(127);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) < 0) fail("command", command[0]);
    /* What is in use may stay, and the command says so by its exit status. */
    if (!WIFEXITED(status) || WEXITSTATUS(status) > 125) fail("command", command[0]);
}

static void make(const char *path) {
    unsigned char *bytes = malloc(LENGTH);
    for (size_t at = 0; at < LENGTH; at++) bytes[at] = wanted(at);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0 || write(file, bytes, LENGTH) != LENGTH || close(file)) fail("write", path);
    free(bytes);
}

static void read_whole(const char *path) {
    unsigned char *bytes = malloc(LENGTH);
    int file = open(path, O_RDONLY);
    if (file < 0 || read(file, bytes, LENGTH) != LENGTH) fail("read", path);
    compare(bytes, "read", path);
    close(file);
    free(bytes);
}

/* One mapping: closed before the store is emptied or not, shared or private, touched or not. */
static void moment(const char *path, int flags, int closes, int touches, char **empty) {
    char when[96];
    snprintf(when, sizeof when, "mapped %s, %s, %s", flags == MAP_SHARED ? "shared" : "private",
             closes ? "closed" : "open", touches ? "touched" : "not touched");
    int file = open(path, O_RDONLY);
    if (file < 0) fail("open", path);
    errno = 0;
    unsigned char *bytes = mmap(NULL, LENGTH, PROT_READ, flags, file, 0);
    if (bytes == MAP_FAILED) fail(when, path);
    if (touches) compare(bytes, when, path);
    if (closes) close(file);
    run(empty);
    compare(bytes, when, path);
    /* A child that inherits the mapping, after the store is empty and while it is emptied again. */
    pid_t child = fork();
    if (child == 0) {
        compare(bytes, "in a child", path);
        _exit(0);
    }
    run(empty);
    int status = 0;
    waitpid(child, &status, 0);
    if (status) fail("in a child", path);
    compare(bytes, when, path);
    munmap(bytes, LENGTH);
    if (!closes) close(file);
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    const char *path = arguments[1];
    make(path);
    for (int round = 0; round < 8; round++) {
        /* Resident, if the node makes it so. */
        usleep(300000);
        read_whole(path);
        read_whole(path);
        int flags = round & 1 ? MAP_SHARED : MAP_PRIVATE;
        moment(path, flags, round & 2, round & 4, arguments + 2);
        read_whole(path);
    }
    return 0;
}
