/*
 * What was read from one stream, for Hadoop's statistics: operations, bytes, and which level they
 * came from. Counting is one addition; the rest is done when somebody asks.
 */
package io.tidepool.hadoop;

import static org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.dynamicIOStatistics;

import java.util.concurrent.atomic.LongAdder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsContext;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;

final class ReadStatistics {

    /** Counters of bytes by level; the names of the levels follow. */
    static final String BYTES_FROM = "stream_read_bytes_from_";

    /** Levels in the order of the native library, nearest first. */
    private static final String[] LEVELS = {"mapped", "store", "peer", "buffer", "pfs"};

    private final NativeFile file;
    private final FileSystem.Statistics whole;
    private final LongAdder operations = new LongAdder();
    private final LongAdder bytes = new LongAdder();
    private final LongAdder vectored = new LongAdder();
    private final LongAdder ranges = new LongAdder();
    private final LongAdder seeks = new LongAdder();
    private final LongAdder zeroCopyBytes = new LongAdder();
    private volatile long[] lastLevels = new long[LEVELS.length];

    ReadStatistics(NativeFile file, FileSystem.Statistics whole) {
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
            if (whole != null) {
                whole.incrementBytesRead(count);
            }
        }
    }

    void vectored(int count) {
        vectored.increment();
        ranges.add(count);
    }

    void range(int count) {
        bytesRead(count);
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

    /** Called after the close: the thread's context hears of this stream. */
    void closed() {
        if (bytes.sum() > 0) {
            IOStatisticsContext.getCurrentIOStatisticsContext().getAggregator().aggregate(live());
        }
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

    /** Counters that move on as the stream is read. */
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
                        "stream_read_bytes_zero_copy", key -> zeroCopyBytes.sum());
        for (int index = 0; index < LEVELS.length; index++) {
            int level = index;
            builder.withLongFunctionCounter(BYTES_FROM + LEVELS[level], key -> level(level));
        }
        return builder.build();
    }
}
