/*
 * What one file system did, in Hadoop's names: how often each operation was asked for, how long it
 * took and how often it failed, and what its streams read and wrote, by level, since they closed.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.StorageStatistics;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsLogging;
import org.apache.hadoop.fs.statistics.StoreStatisticNames;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsBinding;
import org.apache.hadoop.fs.statistics.impl.IOStatisticsStore;
import org.apache.hadoop.util.functional.CallableRaisingIOE;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class OperationStatistics {

    private static final Logger LOG = LoggerFactory.getLogger(TideFileSystem.class);
    private static final String LOGGING_LEVEL = "fs.iostatistics.logging.level";

    static final String OPEN = StoreStatisticNames.OP_OPEN;
    static final String CREATE = StoreStatisticNames.OP_CREATE;
    static final String APPEND = StoreStatisticNames.OP_APPEND;
    static final String TRUNCATE = StoreStatisticNames.OP_TRUNCATE;
    static final String MKDIRS = StoreStatisticNames.OP_MKDIRS;
    static final String RENAME = StoreStatisticNames.OP_RENAME;
    static final String DELETE = StoreStatisticNames.OP_DELETE;
    static final String STATUS = StoreStatisticNames.OP_GET_FILE_STATUS;
    static final String LIST = StoreStatisticNames.OP_LIST_STATUS;
    static final String CHECKSUM = StoreStatisticNames.OP_GET_FILE_CHECKSUM;

    /** Those whose failures and times are told. */
    private static final String[] TIMED = {
        OPEN, CREATE, APPEND, TRUNCATE, MKDIRS, RENAME, DELETE, LIST, CHECKSUM,
    };

    private final IOStatisticsStore store = IOStatisticsBinding.iostatisticsStore()
            .withDurationTracking(TIMED)
            .withCounters(STATUS)
            .withCounters(ReadStatistics.NAMES)
            .withCounters(WriteStatistics.NAMES)
            .build();

    /** Counts one operation that takes too short to be timed. */
    void count(String operation) {
        store.incrementCounter(operation);
    }

    /** Does an operation; one that throws counts as failed, also where that is an answer. */
    <T> T timed(String operation, CallableRaisingIOE<T> work) throws IOException {
        return IOStatisticsBinding.trackDuration(store, operation, work);
    }

    /** Adds what a stream did, once it is closed. */
    void add(IOStatistics stream) {
        store.aggregate(stream);
    }

    /** All of it. */
    IOStatistics statistics() {
        return store;
    }

    /** Tells the log what was done, at the level that Hadoop's option for it has. */
    void log(Configuration configuration) {
        String level = configuration.getTrimmed(LOGGING_LEVEL, "debug");
        IOStatisticsLogging.logIOStatisticsAtLevel(LOG, level, statistics());
    }

    @Override
    public String toString() {
        return IOStatisticsLogging.ioStatisticsToString(store);
    }

    /** The counters of it, as older programs ask for them. */
    StorageStatistics storageStatistics() {
        return IOStatisticsBinding.publishAsStorageStatistics(
                TideFileSystem.SCHEME, TideFileSystem.SCHEME, store);
    }
}
