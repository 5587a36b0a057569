/*
 * What was read from one stream, for Hadoop's statistics: operations, bytes, and which level they
 * came from. Counting is one addition; the rest is done when they are asked for.
 */
package io.tidepool.hadoop;

import static org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.dynamicIOStatistics;

import java.util.Arrays;
import java.util.concurrent.atomic.LongAdder;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;

final class ReadStatistics extends StreamStatistics {

    /** Counters of bytes by level; the names of the levels follow. */
    static final String BYTES_FROM = "stream_read_bytes_from_";

    /** Levels in the order of the native library, nearest first. */
    private static final String[] LEVELS = {"mapped", "store", "peer", "buffer", "pfs"};

    private static final String ZERO_COPY = "stream_read_bytes_zero_copy";

    /** The counters of a stream. */
    static final String[] NAMES = Stream.concat(
            Stream.of(
                    StreamStatisticNames.STREAM_READ_OPERATIONS,
                    StreamStatisticNames.STREAM_READ_BYTES,
                    StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS,
                    StreamStatisticNames.STREAM_READ_VECTORED_INCOMING_RANGES,
                    StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS,
                    ZERO_COPY),
            Arrays.stream(LEVELS).map(level -> BYTES_FROM + level)).toArray(String[]::new);

    private final NativeFile file;
    private final FileSystem.Statistics whole;
    private final LongAdder operations = new LongAdder();
    private final LongAdder vectored = new LongAdder();
    private final LongAdder ranges = new LongAdder();
    private final LongAdder seeks = new LongAdder();
    private final LongAdder zeroCopyBytes = new LongAdder();
    private volatile long[] lastLevels = new long[LEVELS.length];

    /**
     * For one stream.
     *
     * @param whole counters of all file systems of the scheme, or {@code null}
     * @param system those of its file system, or {@code null}
     */
    ReadStatistics(
            NativeFile file, FileSystem.Statistics whole, OperationStatistics system) {
        super(system);
        this.file = file;
        this.whole = whole;
    }

    /** Takes note of a read that came to so many bytes, or to the end of the file. */
    void read(int count) {
        operations.increment();
        bytesRead(count);
    }

    private void bytesRead(long count) {
        if (count > 0) {
            bytes.add(count);
            askedFor(count);
        }
    }

    /** Counts for the thread that asks: Hadoop's counters of a task are those of its thread. */
    private void askedFor(long count) {
        if (whole != null) {
            whole.incrementBytesRead(count);
        }
    }

    void vectored(int count) {
        vectored.increment();
        ranges.add(count);
    }

    /** Takes note of a range of which so many bytes are here, and which another thread completes. */
    void range(int held, int length) {
        bytes.add(held);
        askedFor(length);
    }

    /** Takes note of bytes of a range that came later, in whatever thread. */
    void rangeGoesOn(int count) {
        bytes.add(count);
    }

    void seek() {
        seeks.increment();
    }

    void zeroCopy(int count) {
        operations.increment();
        zeroCopyBytes.add(count);
        bytesRead(count);
    }

    /** Called before the file is closed: its counters go with it. */
    void closing() {
        levels();
    }

    private long[] levels() {
        long[] levels = file.levels();
        if (levels == null) {
            return lastLevels;
        }
        lastLevels = levels;
        return levels;
    }

    private long level(int index) {
        long[] levels = levels();
        if (index > 0) {
            return levels[index];
        }
        long others = 0;
        for (int other = 1; other < levels.length; other++) {
            others += levels[other];
        }
        return Math.max(bytes.sum() - others, 0);
    }

    @Override
    IOStatistics live() {
        var builder = dynamicIOStatistics()
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_READ_OPERATIONS, key -> operations.sum())
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_READ_BYTES, key -> bytes.sum())
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_READ_VECTORED_OPERATIONS,
                        key -> vectored.sum())
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_READ_VECTORED_INCOMING_RANGES,
                        key -> ranges.sum())
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_READ_SEEK_OPERATIONS, key -> seeks.sum())
                .withLongFunctionCounter(
                        ZERO_COPY, key -> zeroCopyBytes.sum());
        for (int index = 0; index < LEVELS.length; index++) {
            int level = index;
            builder.withLongFunctionCounter(BYTES_FROM + LEVELS[level], key -> level(level));
        }
        return builder.build();
    }
}
