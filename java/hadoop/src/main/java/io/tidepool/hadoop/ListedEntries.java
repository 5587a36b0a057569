/*
 * The entries of a directory: one native call for all of a directory of usual size, and pieces of
 * it where it is huge. Order is that of the parallel file system. A caller that does not read to
 * the end closes it; one that is dropped is closed by a cleaner.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.NoSuchElementException;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;

final class ListedEntries implements RemoteIterator<TideFileStatus>, Closeable {

    private static final int HEADER_BYTES = 16;
    private static final int COUNT_AT = 8;
    private static final int IS_LIST_AT = 12;

    /** Gives the rest of a list back once: at its end, at the close, or by the cleaner. */
    private static final class Rest implements Runnable {
        private final AtomicLong listing = new AtomicLong();

        /** Takes the handle in the header of a piece. No object is made: the heap may be full. */
        void keepThatOf(byte[] piece) {
            long open = 0;
            for (int index = Long.BYTES - 1; index >= 0; index--) {
                open = open << 8 | piece[index] & 0xff;
            }
            listing.set(open);
        }

        @Override
        public void run() {
            long open = listing.getAndSet(0);
            if (open != 0) {
                NativeNames.listClose(open);
            }
        }
    }

    private final NativeNames names;
    private final Path directory;
    private final String prefix;
    private final long blockBytes;
    private final int entriesMax;
    private final boolean isList;
    private final Rest rest;
    private NameRecord record;
    private int left;
    private boolean more;

    /**
     * Lists a directory, or shows a file as its only entry.
     *
     * @param directory with its scheme
     * @param entriesMax entries that one native call gives at most
     */
    ListedEntries(NativeNames names, Path directory, long blockBytes, int entriesMax)
            throws IOException {
        this.names = names;
        this.directory = directory;
        this.blockBytes = blockBytes;
        this.entriesMax = entriesMax;
        String path = directory.toUri().getPath();
        this.prefix = path.endsWith("/") ? path : path + "/";
        this.rest = new Rest();
        byte[] piece = names.list(path, entriesMax);
        rest.keepThatOf(piece);
        this.isList = piece[IS_LIST_AT] != 0;
        try {
            take(piece);
            if (more) {
                Leaks.CLEANER.register(this, rest);
            }
        } catch (Throwable error) {
            // The heap may be full.
            rest.run();
            throw error;
        }
    }

    private void take(byte[] piece) {
        ByteBuffer header = ByteBuffer.wrap(piece).order(ByteOrder.LITTLE_ENDIAN);
        more = header.getLong(0) != 0;
        left = header.getInt(COUNT_AT);
        record = new NameRecord(piece, HEADER_BYTES);
    }

    /** Entries that are here already. */
    int atHand() {
        return left;
    }

    /** Whether these are the entries of a directory, and not a file itself. */
    boolean isList() {
        return isList;
    }

    @Override
    public boolean hasNext() throws IOException {
        while (left == 0 && more) {
            synchronized (rest) {
                long open = rest.listing.get();
                if (open == 0) {
                    throw new IOException("while listing " + directory + ": the list is closed");
                }
                take(NativeNames.listMore(open, entriesMax));
            }
            if (!more) {
                rest.run();
            }
        }
        return left > 0;
    }

    @Override
    public TideFileStatus next() throws IOException {
        if (!hasNext()) {
            throw new NoSuchElementException(directory + " has no more entries");
        }
        Path path = isList ? new Path(TideFileSystem.SCHEME, null, prefix + record.name())
                : directory;
        TideFileStatus status = TideFileStatus.of(record, blockBytes, path, names);
        left--;
        if (left > 0) {
            record.next();
        }
        return status;
    }

    @Override
    public void close() {
        synchronized (rest) {
            rest.run();
        }
        left = 0;
        more = false;
    }
}
