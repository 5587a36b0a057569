/*
 * Writes a file of tide://. Bytes are gathered and handed to the node, or to the parallel file
 * system where there is none: when the buffer is full, at a flush, and at the close. Which promise
 * the close keeps is the write mode's.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.io.OutputStream;
import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.Locale;
import java.util.Objects;
import org.apache.hadoop.fs.CanSetDropBehind;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.Syncable;
import org.apache.hadoop.fs.impl.StoreImplementationUtils;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;

final class TideOutputStream extends OutputStream
        implements Syncable, CanSetDropBehind, StreamCapabilities, IOStatisticsSource {

    private final NativeFile file;
    private final WriteStatistics statistics;
    private final BufferPool pool;
    private final NativeClient.Sizes sizes;
    private final Kind kind;
    private final Cleaner.Cleanable watch;

    // All under the lock of the stream.
    private long position;
    private ByteBuffer buffer;
    private Throwable failure;

    /** What is written: a file that was created or emptied, or one whose bytes stay before ours. */
    enum Kind { NEW, APPENDED }

    /**
     * Takes over an open file.
     *
     * @param position where the first byte goes: the length of a file that is appended to
     * @param sizes of the open: writes are gathered up to the size of the write buffer
     * @param system counters of its file system, or {@code null}
     */
    TideOutputStream(NativeFile file, Kind kind, long position, NativeClient.Sizes sizes,
            OperationStatistics system) {
        this.file = file;
        this.kind = kind;
        this.position = position;
        this.sizes = sizes;
        this.pool = file.client().buffers;
        this.statistics = new WriteStatistics(system);
        this.watch = Leaks.watch(this, file, "; what was not handed over yet is lost");
        file.client().begins(this);
    }

    private void checkOpen() throws IOException {
        if (file.isClosed()) {
            throw file.closedException();
        }
        if (failure != null) {
            // What a write could not do, no later one makes good.
            throw new IOException("an earlier write failed: " + failure.getMessage(), failure);
        }
    }

    @Override
    public synchronized void write(int value) throws IOException {
        checkOpen();
        makeRoom();
        buffer.put((byte) value);
        statistics.written(1);
    }

    @Override
    public synchronized void write(byte[] source, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, source.length);
        checkOpen();
        int done = 0;
        while (done < length) {
            makeRoom();
            int step = Math.min(length - done, buffer.remaining());
            buffer.put(source, offset + done, step);
            done += step;
        }
        statistics.written(length);
    }

    /** Sees to it that the buffer takes a byte at least. */
    private void makeRoom() throws IOException {
        if (buffer == null) {
            try {
                buffer = pool.take(sizes.writeBufferBytes());
            } catch (Throwable error) {
                // There may be no memory for it now, and some for the bytes after these.
                failure = error;
                statistics.failed();
                throw error;
            }
        } else if (!buffer.hasRemaining()) {
            handOver();
        }
    }

    /** Hands the buffer to the node, or to the parallel file system. */
    private void handOver() throws IOException {
        if (buffer == null || buffer.position() == 0) {
            return;
        }
        int bytes = buffer.position();
        try {
            file.write(position, buffer.flip());
        } catch (Throwable error) {
            failure = error;
            statistics.failed();
            throw error;
        }
        buffer.clear();
        position += bytes;
    }

    /** Hands over what was written; readers of this node, and of the PFS, see it. */
    @Override
    public synchronized void flush() throws IOException {
        checkOpen();
        handOver();
    }

    /** Hands over what was written, if anything can be; the file system of this stream closes. */
    synchronized void flushIfOpen() throws IOException {
        if (!file.isClosed() && failure == null) {
            handOver();
        }
    }

    /** As {@link #flush}. */
    @Override
    public synchronized void hflush() throws IOException {
        flush();
        statistics.flushed();
    }

    /** Makes what was written durable, as the parallel file system's own sync does. */
    @Override
    public synchronized void hsync() throws IOException {
        flush();
        file.sync();
        statistics.synced();
    }

    /** Has the node keep no copy of this file; {@code null} and false have it keep one. */
    @Override
    public synchronized void setDropBehind(Boolean drop) throws IOException {
        checkOpen();
        file.setKeep(!Boolean.TRUE.equals(drop));
    }

    @Override
    public synchronized void close() throws IOException {
        if (file.isClosed()) {
            return;
        }
        boolean hasFailed = failure != null;
        try {
            if (!hasFailed) {
                handOver();
            }
        } finally {
            end();
        }
        if (hasFailed) {
            // A caller that did not see the write fail would take the file for whole.
            throw new IOException("an earlier write failed: " + failure.getMessage(), failure);
        }
    }

    private void end() throws IOException {
        try {
            file.close();
        } finally {
            watch.clean();
            file.client().ends(this);
            if (buffer != null) {
                pool.give(buffer);
                buffer = null;
            }
            statistics.closed();
        }
    }

    @Override
    public boolean hasCapability(String capability) {
        if (StoreImplementationUtils.isProbeForSyncable(capability)) {
            // In memory readers see what was flushed, and nothing is durable. Rules of the node may
            // put a file there, so what the open got decides, not what it asked for.
            return !capability.equalsIgnoreCase(StreamCapabilities.HSYNC) || !file.mayBeLost();
        }
        switch (capability.toLowerCase(Locale.ROOT)) {
            case StreamCapabilities.IOSTATISTICS:
            case StreamCapabilities.IOSTATISTICS_CONTEXT:
                return true;
            case StreamCapabilities.DROPBEHIND:
                // What is in memory alone is never dropped.
                return !file.mayBeLost();
            default:
                return false;
        }
    }

    @Override
    public IOStatistics getIOStatistics() {
        return statistics.live();
    }

    @Override
    public String toString() {
        return "TideOutputStream{" + file.path() + ", " + getIOStatistics() + '}';
    }
}
