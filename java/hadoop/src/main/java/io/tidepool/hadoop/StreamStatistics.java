/*
 * What the counters of a stream share, whichever way its bytes go: to which statistics they are
 * added when it is closed. Counting is one addition; the rest is done when they are asked for.
 */
package io.tidepool.hadoop;

import java.util.concurrent.atomic.LongAdder;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsAggregator;

abstract class StreamStatistics {

    /** Bytes that went through the stream. */
    final LongAdder bytes = new LongAdder();

    private final OperationStatistics system;
    private final IOStatisticsAggregator opener = OpenerStatistics.ofThisThread();

    /**
     * For one stream, opened by this thread.
     *
     * @param system counters of its file system, or {@code null}
     */
    StreamStatistics(OperationStatistics system) {
        this.system = system;
    }

    /** Counters that move on as the stream is used. */
    abstract IOStatistics live();

    /** Called after the close: the thread that opened this, and the file system, hear of it. */
    final void closed() {
        if (bytes.sum() == 0) {
            return;
        }
        IOStatistics all = live();
        if (opener != null) {
            opener.aggregate(all);
        }
        if (system != null) {
            system.add(all);
        }
    }
}
