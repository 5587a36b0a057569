/*
 * The entries of a directory with the places of their blocks, as schedulers want them; taken piece
 * by piece. Places are computed here and cost no call.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.util.NoSuchElementException;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;

final class LocatedEntries implements RemoteIterator<LocatedFileStatus>, Closeable {

    private final TideFileSystem system;
    private final ListedEntries entries;
    private final PathFilter filter;
    private LocatedFileStatus next;

    /** A status with places, which still tells the version. */
    private static final class Located extends LocatedFileStatus implements EtagSource {
        private static final long serialVersionUID = 1;
        private final String etag;

        Located(TideFileStatus status, BlockLocation[] places) {
            super(status, places);
            this.etag = status.getEtag();
        }

        @Override
        public String getEtag() {
            return etag;
        }

        @Override
        public boolean equals(Object other) {
            return super.equals(other);
        }

        @Override
        public int hashCode() {
            return super.hashCode();
        }
    }

    LocatedEntries(TideFileSystem system, ListedEntries entries, PathFilter filter) {
        this.system = system;
        this.entries = entries;
        this.filter = filter;
    }

    @Override
    public boolean hasNext() throws IOException {
        while (next == null && entries.hasNext()) {
            TideFileStatus status = entries.next();
            if (filter.accept(status.getPath())) {
                BlockLocation[] places = status.isFile()
                        ? system.getFileBlockLocations(status, 0, status.getLen()) : null;
                next = new Located(status, places);
            }
        }
        return next != null;
    }

    /** Ends the list before its last entry. */
    @Override
    public void close() {
        entries.close();
        next = null;
    }

    @Override
    public LocatedFileStatus next() throws IOException {
        if (!hasNext()) {
            throw new NoSuchElementException("the directory has no more entries");
        }
        LocatedFileStatus found = next;
        next = null;
        return found;
    }
}
