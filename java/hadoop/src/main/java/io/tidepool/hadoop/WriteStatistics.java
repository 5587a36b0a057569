/*
 * What was written to one stream, for Hadoop's statistics. Counting is one addition.
 * The counters of the whole file system are those of Hadoop's wrapper around the stream.
 */
package io.tidepool.hadoop;

import static org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding.dynamicIOStatistics;

import java.util.concurrent.atomic.LongAdder;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.StreamStatisticNames;

final class WriteStatistics extends StreamStatistics {

    /** The counters of a stream. */
    static final String[] NAMES = {
        StreamStatisticNames.STREAM_WRITE_BYTES,
        StreamStatisticNames.STREAM_WRITE_EXCEPTIONS,
        StoreStatisticNames.OP_HFLUSH,
        StoreStatisticNames.OP_HSYNC,
    };

    private final LongAdder failures = new LongAdder();
    private final LongAdder flushes = new LongAdder();
    private final LongAdder syncs = new LongAdder();

    /**
     * For one stream.
     *
     * @param system counters of its file system, or {@code null}
     */
    WriteStatistics(OperationStatistics system) {
        super(system);
    }

    void written(int count) {
        bytes.add(count);
    }

    void failed() {
        failures.increment();
    }

    void flushed() {
        flushes.increment();
    }

    void synced() {
        syncs.increment();
    }

    @Override
    IOStatistics live() {
        return dynamicIOStatistics()
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_WRITE_BYTES, key -> bytes.sum())
                .withLongFunctionCounter(
                        StreamStatisticNames.STREAM_WRITE_EXCEPTIONS, key -> failures.sum())
                .withLongFunctionCounter(StoreStatisticNames.OP_HFLUSH, key -> flushes.sum())
                .withLongFunctionCounter(StoreStatisticNames.OP_HSYNC, key -> syncs.sum())
                .build();
    }
}
