/*
 * The entries of a directory as one of Hadoop's iterators, which can be closed before its end.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.RemoteIterator;

record Statuses(ListedEntries entries)
        implements RemoteIterator<FileStatus>, Closeable {
    @Override
    public boolean hasNext() throws IOException {
        return entries.hasNext();
    }

    @Override
    public FileStatus next() throws IOException {
        return entries.next();
    }

    @Override
    public void close() {
        entries.close();
    }
}
