/* How fast a file is read beside another one, in one run: by reads of 1 MiB and by a mapping whose
 * bytes are added up, in turn for some rounds. Prints the medians and how often the first one's is
 * in the second one's.
 *
 * usage: reads FILE OTHER */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ROUNDS = 7, BLOCK = 1 << 20 };

static void fail(const char *what, const char *where) {
    printf("%s: %s: %s\n", where, what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static uint64_t added_up(const uint64_t *words, size_t bytes) {
    uint64_t sum = 0;
    for (size_t at = 0; at < bytes / sizeof *words; at++) sum += words[at];
    return sum;
}

/* Seconds to read the file whole; its words added up go to `sum`. */
static double by_reads(const char *path, uint64_t *sum) {
    static uint64_t block[BLOCK / sizeof(uint64_t)];
    int file = open(path, O_RDONLY);
    if (file < 0) fail("open", path);
    double began = now();
    ssize_t got;
    *sum = 0;
    while ((got = read(file, block, BLOCK)) > 0) *sum += added_up(block, got);
    double took = now() - began;
    if (got < 0 || close(file)) fail("read", path);
    return took;
}

static double by_mapping(const char *path, uint64_t *sum) {
    struct stat stat;
    int file = open(path, O_RDONLY);
    if (file < 0 || fstat(file, &stat)) fail("open", path);
    double began = now();
    uint64_t *words = mmap(NULL, stat.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (words == MAP_FAILED) fail("mmap", path);
    *sum = added_up(words, stat.st_size);
    double took = now() - began;
    munmap(words, stat.st_size);
    close(file);
    return took;
}

static int in_order(const void *one, const void *other) {
    double difference = *(const double *)one - *(const double *)other;
    return (difference > 0) - (difference < 0);
}

static void compare(const char *name, double (*way)(const char *, uint64_t *), char **paths) {
    double seconds[2][ROUNDS], rate[2];
    uint64_t sums[2];
    for (int round = -1; round < ROUNDS; round++) {
        for (int which = 0; which < 2; which++) {
            double took = way(paths[which], &sums[which]);
            /* The first round brings the files into memory. */
            if (round >= 0) seconds[which][round] = took;
        }
        if (sums[0] != sums[1]) fail("other bytes", name);
    }
    struct stat stat;
    if (lstat(paths[0], &stat)) fail("stat", paths[0]);
    for (int which = 0; which < 2; which++) {
        qsort(seconds[which], ROUNDS, sizeof(double), in_order);
        rate[which] = stat.st_size / 1e6 / seconds[which][ROUNDS / 2];
    }
    printf("vm: %s: %.0f MB/s by the mount, %.0f by tmpfs: %.2f of it\n", name, rate[0], rate[1],
           rate[0] / rate[1]);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    compare("resident, reads of 1 MiB", by_reads, arguments + 1);
    compare("resident, mapped", by_mapping, arguments + 1);
    return 0;
}
