/*
 * Where blocks are, for schedulers: on the nodes that hold them, or on the one that is to read
 * them, as the node of this machine tells, if it is of a cluster. Otherwise every block is where
 * the task runs. Options that name the hosts go before all of that. Nothing is kept, so no answer
 * is old.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class Locality {

    private static final Logger LOG = LoggerFactory.getLogger(Locality.class);

    private static final BlockLocation[] NONE = {};
    private static final String[] NOWHERE = {};

    /** What schedulers take for a task that may run anywhere. */
    private static final String[] NO_PREFERENCE = {"localhost"};

    /** Numbers a file that the native library is given, and a block that it answers. */
    private static final int RANGE_NUMBERS = 3;
    private static final int HOSTS_MAX = 3;
    private static final int FOUND_NUMBERS = HOSTS_MAX + 1;

    /** Blocks of one call from which on there is another one for the next file. */
    private static final int CALL_BLOCKS = 1 << 16;

    /** Blocks of one file that are asked about; those beyond may be anywhere. */
    private static final int FILE_BLOCKS_MAX = 1 << 20;

    private final NativeNames names;
    private final String[] given;

    Locality(Configuration configuration, NativeNames names) {
        this.names = names;
        this.given = configuration.getTrimmedStrings(TideOptions.HOST_NAMES);
    }

    /** Blocks of a file that a range touches. */
    private record Blocks(FileStatus file, long first, int count) {

        static Blocks of(FileStatus file, long start, long length) {
            long size = file.getLen();
            if (file.isDirectory() || start >= size || length == 0) {
                return new Blocks(file, 0, 0);
            }
            long end = length > size - start ? size : start + length;
            long first = start / bytes(file);
            return new Blocks(file, first, Math.toIntExact((end - 1) / bytes(file) - first + 1));
        }

        private static long bytes(FileStatus file) {
            return Math.max(file.getBlockSize(), 1);
        }

        /** How many of them are asked about. */
        int asked() {
            Path path = file.getPath();
            boolean isOurs = path != null && path.isUriPathAbsolute()
                    && TideFileSystem.SCHEME.equals(path.toUri().getScheme());
            return isOurs ? Math.min(count, FILE_BLOCKS_MAX) : 0;
        }

        BlockLocation location(int index, String[] hosts, boolean isInMemory) {
            long offset = (first + index) * bytes(file);
            long length = Math.min(bytes(file), file.getLen() - offset);
            String[] cached = isInMemory ? hosts : NOWHERE;
            return new BlockLocation(hosts, hosts, cached, null, offset, length, false);
        }
    }

    /** The blocks of a file that a range touches. */
    BlockLocation[] locations(FileStatus file, long start, long length) {
        if (start < 0 || length < 0) {
            throw new IllegalArgumentException("Invalid start or len parameter");
        }
        if (file == null) {
            return null;
        }
        return locations(List.of(Blocks.of(file, start, length))).get(0);
    }

    /** All blocks of each file, with few calls. */
    List<BlockLocation[]> locations(Iterable<? extends FileStatus> files) {
        List<BlockLocation[]> all = new ArrayList<>();
        List<Blocks> together = new ArrayList<>();
        long count = 0;
        for (FileStatus file : files) {
            Blocks blocks = Blocks.of(file, 0, file.getLen());
            together.add(blocks);
            count += blocks.asked();
            if (count >= CALL_BLOCKS) {
                all.addAll(locations(together));
                together.clear();
                count = 0;
            }
        }
        all.addAll(locations(together));
        return all;
    }

    private List<BlockLocation[]> locations(List<Blocks> files) {
        int asked = files.stream().mapToInt(Blocks::asked).sum();
        int[] found = new int[asked * FOUND_NUMBERS];
        String[] hosts = given.length == 0 && asked > 0 ? ask(files, found) : NOWHERE;
        List<BlockLocation[]> all = new ArrayList<>(files.size());
        int at = 0;
        for (Blocks blocks : files) {
            BlockLocation[] locations = blocks.count() == 0 ? NONE
                    : new BlockLocation[blocks.count()];
            for (int index = 0; index < locations.length; index++) {
                boolean isKnown = hosts.length > 0 && index < blocks.asked()
                        && found[at + index * FOUND_NUMBERS] >= 0;
                int place = at + index * FOUND_NUMBERS;
                locations[index] = isKnown
                        ? blocks.location(index, hostsAt(found, place, hosts),
                                found[place + HOSTS_MAX] == 1)
                        : blocks.location(index, given.length == 0 ? NO_PREFERENCE : given, false);
            }
            at += blocks.asked() * FOUND_NUMBERS;
            all.add(locations);
        }
        return all;
    }

    private static String[] hostsAt(int[] found, int place, String[] hosts) {
        int count = 0;
        while (count < HOSTS_MAX && found[place + count] >= 0) {
            count++;
        }
        return Arrays.stream(found, place, place + count).mapToObj(number -> hosts[number])
                .toArray(String[]::new);
    }

    /** Fills {@code found} and returns the names that it speaks of; none where nothing is known. */
    private String[] ask(List<Blocks> files, int[] found) {
        List<Blocks> asked = files.stream().filter(blocks -> blocks.asked() > 0).toList();
        String[] paths = new String[asked.size()];
        long[] ranges = new long[asked.size() * RANGE_NUMBERS];
        for (int index = 0; index < paths.length; index++) {
            Blocks blocks = asked.get(index);
            paths[index] = blocks.file().getPath().toUri().getPath();
            ranges[index * RANGE_NUMBERS] = Blocks.bytes(blocks.file());
            ranges[index * RANGE_NUMBERS + 1] = blocks.first();
            ranges[index * RANGE_NUMBERS + 2] = blocks.asked();
        }
        try {
            return names.locate(paths, ranges, found);
        } catch (IOException error) {
            // Places are hints: a job runs without.
            LOG.debug("where blocks are is not known", error);
            return NOWHERE;
        }
    }
}
