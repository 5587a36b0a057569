/*
 * The statistics of the thread that opens a stream, where Hadoop has them: since 3.3.5. Spark and
 * committers ask a task's thread for what its streams did.
 */
package io.tidepool.hadoop;

import org.apache.hadoop.fs.statistics.IOStatisticsAggregator;
import org.apache.hadoop.fs.statistics.IOStatisticsContext;

final class OpenerStatistics {

    private static final boolean IS_THERE = isThere();

    private OpenerStatistics() {}

    private static boolean isThere() {
        try {
            Class.forName("org.apache.hadoop.fs.statistics.IOStatisticsContext", false,
                    IOStatisticsAggregator.class.getClassLoader());
            return true;
        } catch (ClassNotFoundException older) {
            return false;
        }
    }

    /** Where the streams of this thread are added up; {@code null} where Hadoop is too old. */
    static IOStatisticsAggregator ofThisThread() {
        return IS_THERE ? Newer.ofThisThread() : null;
    }

    /** Loaded where the class that it names is there. */
    private static final class Newer {
        static IOStatisticsAggregator ofThisThread() {
            return IOStatisticsContext.getCurrentIOStatisticsContext().getAggregator();
        }
    }
}
