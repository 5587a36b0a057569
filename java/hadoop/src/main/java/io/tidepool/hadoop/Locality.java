/*
 * Where blocks are, for schedulers: this node holds, or reads at its own speed, every byte. The
 * name is the one that YARN and Spark give their workers here. Asks no node.
 */
package io.tidepool.hadoop;

import java.net.InetAddress;
import java.net.UnknownHostException;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;

final class Locality {

    private static final BlockLocation[] NONE = {};

    /** Looked up once: it does not change while a process lives. */
    private static final class Host {
        static final String[] NAMES = {name()};

        private static String name() {
            try {
                return InetAddress.getLocalHost().getCanonicalHostName();
            } catch (UnknownHostException error) {
                return "localhost";
            }
        }
    }

    private Locality() {}

    /** The blocks of a file that a range touches. */
    static BlockLocation[] locations(FileStatus file, long start, long length) {
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
            locations[index] = new BlockLocation(Host.NAMES, Host.NAMES, offset, bytes);
        }
        return locations;
    }
}
