/* MPI-IO: all processes write one file and read it, by views, collectively, by shared pointers.
 * Prints nothing where all is well.
 *
 * usage: mpirun -n N mpi-io FILE */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIECE = 1000, PIECES = 300, RECORD = 4096, RECORDS = 64 };

static int rank, size;

static void fail(const char *what, long at) {
    printf("process %d of %d: %s, at %ld\n", rank, size, what, at);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void try(int result, const char *what) {
    if (result != MPI_SUCCESS) fail(what, result);
}

static MPI_File opened(const char *path, int mode) {
    MPI_File file;
    try(MPI_File_open(MPI_COMM_WORLD, path, mode, MPI_INFO_NULL, &file), "open");
    return file;
}

/* What the standard asks for between a write of one process and a read of another. */
static void settle(MPI_File file) {
    try(MPI_File_sync(file), "sync");
    MPI_Barrier(MPI_COMM_WORLD);
    try(MPI_File_sync(file), "sync");
}

static int value(int round, int owner, int at) { return round * 1000003 + owner * 7919 + at; }

/* Pieces of all processes in turn, of a length that is no block's. */
static void interleaved(const char *path, int round) {
    static int mine[PIECE * PIECES], back[PIECE * PIECES];
    MPI_File file = opened(path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    MPI_Datatype turns;
    MPI_Type_vector(PIECES, PIECE, PIECE * size, MPI_INT, &turns);
    MPI_Type_commit(&turns);
    MPI_Offset start = (MPI_Offset)rank * PIECE * sizeof(int);
    try(MPI_File_set_view(file, start, MPI_INT, turns, "native", MPI_INFO_NULL), "view");
    for (int at = 0; at < PIECE * PIECES; at++) mine[at] = value(round, rank, at);
    try(MPI_File_write_at_all(file, 0, mine, PIECE * PIECES, MPI_INT, MPI_STATUS_IGNORE), "write");
    settle(file);
    /* What the neighbour wrote. */
    int other = (rank + 1) % size;
    start = (MPI_Offset)other * PIECE * sizeof(int);
    try(MPI_File_set_view(file, start, MPI_INT, turns, "native", MPI_INFO_NULL), "view");
    try(MPI_File_read_at_all(file, 0, back, PIECE * PIECES, MPI_INT, MPI_STATUS_IGNORE), "read");
    for (int at = 0; at < PIECE * PIECES; at++)
        if (back[at] != value(round, other, at)) fail("another value, collectively", at);
    /* The same alone, without a view. */
    try(MPI_File_set_view(file, 0, MPI_INT, MPI_INT, "native", MPI_INFO_NULL), "view");
    for (int piece = 0; piece < PIECES; piece++) {
        MPI_Offset at = ((MPI_Offset)piece * size + other) * PIECE;
        try(MPI_File_read_at(file, at, back, PIECE, MPI_INT, MPI_STATUS_IGNORE), "read alone");
        for (int in = 0; in < PIECE; in++)
            if (back[in] != value(round, other, piece * PIECE + in)) fail("another value", at + in);
    }
    MPI_Type_free(&turns);
    try(MPI_File_close(&file), "close");
}

/* Records by the shared pointer: in the order of processes, then in any order, all of them once. */
static void shared(const char *path, int round) {
    static int record[RECORD];
    int *seen = calloc((size_t)size * RECORDS, sizeof(int));
    MPI_File file = opened(path, MPI_MODE_CREATE | MPI_MODE_RDWR);
    for (int number = 0; number < RECORDS; number++) {
        for (int at = 0; at < RECORD; at++) record[at] = value(round, rank * RECORDS + number, 0);
        if (number % 2)
            try(MPI_File_write_ordered(file, record, RECORD, MPI_INT, MPI_STATUS_IGNORE), "write");
        else
            try(MPI_File_write_shared(file, record, RECORD, MPI_INT, MPI_STATUS_IGNORE), "write");
        MPI_Barrier(MPI_COMM_WORLD);
    }
    settle(file);
    MPI_Offset length;
    try(MPI_File_get_size(file, &length), "length");
    if (length != (MPI_Offset)size * RECORDS * RECORD * (MPI_Offset)sizeof(int))
        fail("another length", (long)length);
    for (int at = 0; at < size * RECORDS; at++) {
        MPI_Offset start = (MPI_Offset)at * sizeof record;
        try(MPI_File_read_at(file, start, record, RECORD, MPI_INT, MPI_STATUS_IGNORE), "read");
        int owner = (record[0] - value(round, 0, 0)) / 7919;
        if (owner < 0 || owner >= size * RECORDS || seen[owner]++) fail("a record of nobody", at);
        for (int in = 0; in < RECORD; in++)
            if (record[in] != value(round, owner, 0)) fail("a torn record", at);
        if (at / size % 2 && owner / RECORDS != at % size) fail("a record out of order", at);
    }
    free(seen);
    try(MPI_File_close(&file), "close");
}

/* Longer, shorter, and gone at close. */
static void lengths(const char *path) {
    MPI_File file = opened(path, MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE);
    MPI_Offset wanted[] = {3000001, 17, 8 << 20, 0}, length;
    for (int at = 0; at < 4; at++) {
        try(MPI_File_set_size(file, wanted[at]), "set the length");
        MPI_Barrier(MPI_COMM_WORLD);
        try(MPI_File_get_size(file, &length), "length");
        if (length != wanted[at]) fail("another length", (long)length);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    try(MPI_File_close(&file), "close");
}

int main(int count, char **arguments) {
    if (count != 2) return 2;
    MPI_Init(&count, &arguments);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    char path[4096];
    for (int round = 0; round < 4; round++) {
        snprintf(path, sizeof path, "%s.interleaved", arguments[1]);
        interleaved(path, round);
        snprintf(path, sizeof path, "%s.shared.%d", arguments[1], round);
        shared(path, round);
    }
    snprintf(path, sizeof path, "%s.lengths", arguments[1]);
    lengths(path);
    MPI_Finalize();
    return 0;
}
