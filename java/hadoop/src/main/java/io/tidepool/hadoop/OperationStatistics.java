/*
 * How often each operation of a file system was asked for, in Hadoop's names. Counts, and times
 * nothing.
 */
package io.tidepool.hadoop;

import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;

final class OperationStatistics {

    static final int OPEN = 0;
    static final int CREATE = 1;
    static final int APPEND = 2;
    static final int TRUNCATE = 3;
    static final int MKDIRS = 4;
    static final int RENAME = 5;
    static final int DELETE = 6;
    static final int STATUS = 7;
    static final int LIST = 8;
    static final int CHECKSUM = 9;

    private static final String[] NAMES = {
        StoreStatisticNames.OP_OPEN,
        StoreStatisticNames.OP_CREATE,
        StoreStatisticNames.OP_APPEND,
        StoreStatisticNames.OP_TRUNCATE,
        StoreStatisticNames.OP_MKDIRS,
        StoreStatisticNames.OP_RENAME,
        StoreStatisticNames.OP_DELETE,
        StoreStatisticNames.OP_GET_FILE_STATUS,
        StoreStatisticNames.OP_LIST_STATUS,
        StoreStatisticNames.OP_GET_FILE_CHECKSUM,
    };

    private final IOStatisticsStore store =
            IOStatisticsBinding.iostatisticsStore().withCounters(NAMES).build();
    private final AtomicLong[] counters = new AtomicLong[NAMES.length];

    OperationStatistics() {
        for (int index = 0; index < NAMES.length; index++) {
            counters[index] = store.getCounterReference(NAMES[index]);
        }
    }

    /** Counts one operation. */
    void count(int operation) {
        counters[operation].incrementAndGet();
    }

    /** The counters. */
    IOStatistics statistics() {
        return store;
    }
}
