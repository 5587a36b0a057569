/*
 * The entries of a directory with the places of their blocks, as schedulers want them; taken piece
 * by piece. Places of many are asked for together.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Queue;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.EtagSource;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RemoteIterator;

final class LocatedEntries implements RemoteIterator<LocatedFileStatus>, Closeable {

    /** Entries that are located together: few at first, for a caller that wants but a few. */
    private static final int TOGETHER_MIN = 16;
    private static final int TOGETHER_MAX = 1024;

    private final Locality locality;
    private final ListedEntries entries;
    private final PathFilter filter;
    private final Queue<LocatedFileStatus> located = new ArrayDeque<>();
    private int together = TOGETHER_MIN;

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

    LocatedEntries(Locality locality, ListedEntries entries, PathFilter filter) {
        this.locality = locality;
        this.entries = entries;
        this.filter = filter;
    }

    @Override
    public boolean hasNext() throws IOException {
        if (located.isEmpty()) {
            List<TideFileStatus> more = new ArrayList<>();
            while (more.size() < together && entries.hasNext()) {
                TideFileStatus status = entries.next();
                if (filter.accept(status.getPath())) {
                    more.add(status);
                }
            }
            together = Math.min(4 * together, TOGETHER_MAX);
            List<BlockLocation[]> places = locality.locations(more);
            for (int index = 0; index < more.size(); index++) {
                TideFileStatus status = more.get(index);
                located.add(new Located(status, status.isFile() ? places.get(index) : null));
            }
        }
        return !located.isEmpty();
    }

    /** Ends the list before its last entry. */
    @Override
    public void close() {
        entries.close();
        located.clear();
    }

    @Override
    public LocatedFileStatus next() throws IOException {
        if (!hasNext()) {
            throw new NoSuchElementException("the directory has no more entries");
        }
        return located.remove();
    }
}
