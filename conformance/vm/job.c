/* A job: takes memory step by step, keeps it and gives it back; or comes and goes again and again.
 * Says how long it waited for its memory. Bytes are touched page by page.
 *
 * usage: job take MIB EVERY_MS STEPS HOLD_MS [locked]
 *        job bursts MIB EVERY_MS ROUNDS
 *        job file PATH MIB ROUNDS     (written, synced and cut to nothing each round)
 *        job put PATH NUMBER KIB      (a file whose bytes follow from its number)
 *        job right PATH NUMBER KIB    (fails where they are others) */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, MIB = 1 << 20 };

static void fail(const char *what) {
    printf("job: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Sleeps until a time in milliseconds; not at all where it is over. */
static void sleep_until(double at) {
    double left = at - now();
    if (left > 0) usleep((useconds_t)(left * 1e3));
}

/* Takes bytes and returns the milliseconds that it took. */
static double take(char **at, size_t bytes, int locked) {
    double began = now();
    *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (*at == MAP_FAILED) fail("mmap");
    if (locked && mlock(*at, bytes)) fail("mlock");
    for (size_t page = 0; page < bytes; page += PAGE) (*at)[page] = 1;
    return now() - began;
}

static int by_size(const void *left, const void *right) {
    double difference = *(const double *)left - *(const double *)right;
    return (difference > 0) - (difference < 0);
}

static void say(double *times, int count, size_t bytes) {
    qsort(times, count, sizeof *times, by_size);
    printf("job: %d times %zu MiB: to memory %.0f ms in the middle, %.0f ms at most\n", count,
           bytes / MIB, times[count / 2], times[count - 1]);
}

/* Writes a file, or compares it. */
static int file_of(const char *what, const char *path, uint64_t number, size_t bytes) {
    static uint64_t ours[MIB / sizeof(uint64_t)], theirs[MIB / sizeof(uint64_t)];
    int puts = !strcmp(what, "put");
    int file = open(path, puts ? O_CREAT | O_WRONLY | O_TRUNC : O_RDONLY, 0644);
    if (file < 0) fail(path);
    for (size_t at = 0; at < bytes;) {
        size_t part = bytes - at < MIB ? bytes - at : MIB;
        for (size_t word = 0; word < part / sizeof *ours; word++)
            ours[word] = (number << 40) ^ (at + word) * 0x9e3779b97f4a7c15u;
        ssize_t moved = puts ? write(file, ours, part) : read(file, theirs, part);
        if (moved != (ssize_t)part) fail(path);
        if (!puts && memcmp(ours, theirs, part)) {
            printf("%s has other bytes in its MiB %zu\n", path, at / MIB);
            return 1;
        }
        at += part;
    }
    if (close(file)) fail(path);
    return 0;
}

int main(int count, char **word) {
    if (count < 5) return 2;
    const char *what = word[1];
    if (!strcmp(what, "put") || !strcmp(what, "right"))
        return file_of(what, word[2], atoi(word[3]), (size_t)atoi(word[4]) << 10);
    if (!strcmp(what, "file")) {
        size_t bytes = (size_t)atoi(word[3]) * MIB;
        char *block = calloc(1, MIB);
        for (int round = 0; round < atoi(word[4]); round++) {
            int file = open(word[2], O_CREAT | O_WRONLY | O_TRUNC, 0600);
            if (file < 0) fail("open");
            for (size_t at = 0; at < bytes; at += MIB)
                if (write(file, block, MIB) != MIB) fail("write");
            if (fsync(file) || ftruncate(file, 0) || close(file)) fail("writing");
        }
        return 0;
    }
    size_t bytes = (size_t)atoi(word[2]) * MIB;
    double every = atof(word[3]);
    int steps = atoi(word[4]);
    double *times = calloc(steps, sizeof *times);
    if (!strcmp(what, "bursts")) {
        double began = now();
        for (int step = 0; step < steps; step++) {
            sleep_until(began + step * every);
            char *at;
            times[step] = take(&at, bytes, 0);
            usleep((useconds_t)(every * 300));
            munmap(at, bytes);
        }
    } else {
        int locked = count > 6 && !strcmp(word[6], "locked");
        double next = now();
        for (int step = 0; step < steps; step++) {
            char *at;
            times[step] = take(&at, bytes, locked);
            next += every;
            sleep_until(next);
        }
        sleep_until(now() + (count > 5 ? atof(word[5]) : 0));
    }
    say(times, steps, bytes);
    return 0;
}
