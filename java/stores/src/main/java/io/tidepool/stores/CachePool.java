package io.tidepool.stores;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.protocol.CachePoolEntry;
import org.apache.hadoop.hdfs.protocol.CachePoolInfo;

/** The limit of a cache pool of HDFS. The NameNode is that of Hadoop's configuration. */
final class CachePool implements ResizableStore {

    private final String pool;
    private final DistributedFileSystem files;

    CachePool(String pool) throws IOException {
        this.pool = pool;
        FileSystem found = FileSystem.get(new Configuration());
        if (!(found instanceof DistributedFileSystem)) {
            throw new IllegalArgumentException("fs.defaultFS is " + found.getUri()
                    + ", which is no HDFS: the class path needs Hadoop's configuration");
        }
        files = (DistributedFileSystem) found;
    }

    /**
     * Sets the limit and has the pools listed: the NameNode looks at what to cache twice a minute,
     * and also when it is asked for its pools, if a limit was set since.
     */
    @Override
    public long resize(long capacityBytes) throws IOException {
        files.modifyCachePool(new CachePoolInfo(pool).setLimit(capacityBytes));
        RemoteIterator<CachePoolEntry> pools = files.listCachePools();
        while (pools.hasNext()) {
            CachePoolInfo each = pools.next().getInfo();
            if (each.getPoolName().equals(pool)) {
                return each.getLimit();
            }
        }
        throw new IllegalArgumentException("cache pool " + pool + " does not exist");
    }
}
