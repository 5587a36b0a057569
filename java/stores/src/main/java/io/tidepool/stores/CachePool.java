package io.tidepool.stores;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.CachePoolEntry;
import org.apache.hadoop.hdfs.protocol.CachePoolInfo;
import org.apache.hadoop.security.AccessControlException;

/** The limit of a cache pool of HDFS. The NameNode is that of Hadoop's configuration. */
final class CachePool implements ResizableStore {

    /**
     * When a limit is set again. A DataNode tells each 10 seconds what it has cached, unless set
     * otherwise, and a look of the NameNode leaves alone what it had not been told of.
     */
    private static final int[] AGAIN_AFTER_S = {4, 8, 12, 16, 24, 34};

    private final String pool;
    private final DistributedFileSystem files;
    private final ScheduledExecutorService later;
    private final List<Future<?>> again = new ArrayList<>();
    private long limitBytes;

    CachePool(String pool) throws IOException {
        this.pool = pool;
        FileSystem found = FileSystem.get(new Configuration());
        if (!(found instanceof DistributedFileSystem)) {
            throw new IllegalArgumentException("fs.defaultFS is " + found.getUri()
                    + ", which is no HDFS: the class path needs Hadoop's configuration");
        }
        files = (DistributedFileSystem) found;
        later = Executors.newSingleThreadScheduledExecutor();
    }

    @Override
    public synchronized long resize(long capacityBytes) throws IOException {
        again.forEach(look -> look.cancel(false));
        again.clear();
        limitBytes = capacityBytes;
        long now = apply();
        for (int seconds : AGAIN_AFTER_S) {
            again.add(later.schedule(this::applyAgain, seconds, TimeUnit.SECONDS));
        }
        return now;
    }

    /** Not where somebody chose another limit meanwhile: that one stays. */
    private synchronized void applyAgain() {
        try {
            if (limit() == limitBytes) {
                apply();
            }
        } catch (IOException | RuntimeException failed) {
            System.err.println("cache pool " + pool + ": " + failed);
        }
    }

    /**
     * Sets the limit and has the pools listed: the NameNode looks at what to cache twice a minute,
     * and also when it is asked for its pools, if a limit was set since.
     */
    private long apply() throws IOException {
        files.modifyCachePool(new CachePoolInfo(pool).setLimit(limitBytes));
        return limit();
    }

    @Override
    public synchronized long limit() throws IOException {
        RemoteIterator<CachePoolEntry> pools = files.listCachePools();
        while (pools.hasNext()) {
            CachePoolInfo each = pools.next().getInfo();
            if (each.getPoolName().equals(pool)) {
                return told(each.getLimit());
            }
        }
        throw new IllegalArgumentException("cache pool " + pool + " does not exist");
    }

    private long told(Long limit) throws AccessControlException {
        if (limit == null) {
            throw new AccessControlException("limits of cache pools are shown to superusers alone");
        }
        return limit;
    }
}
