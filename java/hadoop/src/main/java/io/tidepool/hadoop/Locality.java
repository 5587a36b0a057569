/*
 * Where blocks are, for schedulers. Splits are made by one process for workers on all hosts, and
 * which hosts hold a block is not known there, so every block is where the task runs, unless the
 * options name the hosts. Asks no node.
 */
package io.tidepool.hadoop;

import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;

final class Locality {

    private static final BlockLocation[] NONE = {};

    /** What schedulers take for a task that may run anywhere. */
    private static final String[] NO_PREFERENCE = {"localhost"};

    private final String[] names;

    /**
     * Names the host.
     *
     * @param given names to use; none where it is not known which hosts hold a block
     */
    Locality(String[] given) {
        this.names = given.length == 0 ? NO_PREFERENCE : given;
    }

    /** The blocks of a file that a range touches. */
    BlockLocation[] locations(FileStatus file, long start, long length) {
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException("Invalid start or len parameter");
        }
        if (file == null) {
            return null;
        }
        long size = file.getLen();
        if (file.isDirectory() || start >= size || length == 0) {
            return NONE;
        }
        long block = Math.max(file.getBlockSize(), 1);
        long end = length > size - start ? size : start + length;
        long first = start / block;
        int count = Math.toIntExact((end - 1) / block - first + 1);
        BlockLocation[] locations = new BlockLocation[count];
        for (int index = 0; index < count; index++) {
            long offset = (first + index) * block;
            long bytes = Math.min(block, size - offset);
            locations[index] = new BlockLocation(names, names, offset, bytes);
        }
        return locations;
    }
}
