/*
 * Reads a file of tide://. Reads at positions go straight to the native library, one call each, and
 * many threads may make them at once; reads at the cursor take turns, and short ones go through a
 * buffer that grows while the reader goes on where it was. Names no file and opens none.
 */
package io.tidepool.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.lang.ref.Cleaner;
import java.lang.ref.Reference;
import java.nio.ByteBuffer;
import java.util.EnumSet;
import java.util.List;
import java.util.Locale;
import java.util.Objects;
import java.util.function.Consumer;
import java.util.function.IntFunction;
import org.apache.hadoop.fs.ByteBufferPositionedReadable;
import org.apache.hadoop.fs.ByteBufferReadable;
import org.apache.hadoop.fs.CanSetDropBehind;
import org.apache.hadoop.fs.CanSetReadahead;
import org.apache.hadoop.fs.CanUnbuffer;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.HasEnhancedByteBufferAccess;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.apache.hadoop.fs.statistics.IOStatisticsSource;
import org.apache.hadoop.io.ByteBufferPool;

final class TideInputStream extends FSInputStream
        implements ByteBufferReadable, ByteBufferPositionedReadable, HasEnhancedByteBufferAccess,
        CanUnbuffer, CanSetReadahead, CanSetDropBehind, StreamCapabilities,
        IOStatisticsSource {

    private static final byte[] NO_BUFFER = {};
    /** What the buffer takes in first, after an open and after a seek. */
    private static final int WINDOW_BYTES_MIN = 8 << 10;

    private final NativeFile file;
    private final ReadStatistics statistics;
    private final ZeroCopy zeroCopy;
    private final int bufferBytesMax;
    private final Cleaner.Cleanable watch;
    private final Waiters.OfStream waits = new Waiters.OfStream();

    // The cursor and its buffer, all changed under the lock of the stream.
    private volatile long position;
    private byte[] buffer = NO_BUFFER;
    private long bufferStart;
    private int bufferLength;
    private int window;

    /**
     * Takes over an open file.
     *
     * @param bufferBytesMax shorter reads at the cursor go through a buffer that grows to this; 0
     *     has none
     * @param whole counters of all file systems of the scheme, or {@code null}
     * @param system counters of its file system, or {@code null}
     */
    TideInputStream(NativeFile file, int bufferBytesMax, FileSystem.Statistics whole,
            OperationStatistics system) {
        this.file = file;
        this.bufferBytesMax = bufferBytesMax;
        this.statistics = new ReadStatistics(file, whole, system);
        this.zeroCopy = new ZeroCopy(file, statistics);
        this.watch = Leaks.watch(this, file, "");
    }

    /** The buffer grows to this; 0 is none. */
    int bufferBytesMax() {
        return bufferBytesMax;
    }

    /** The caller has the lock. */
    private void checkOpen() throws IOException {
        if (file.isClosed()) {
            dropBuffer();
            throw file.closedException();
        }
    }

    // The cursor.

    @Override
    public synchronized void seek(long to) throws IOException {
        checkOpen();
        if (to < 0) {
            throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK);
        }
        // A file may have grown since.
        if (to > file.sizeAtOpen() && to > file.size()) {
            throw new EOFException(FSExceptionMessages.CANNOT_SEEK_PAST_EOF);
        }
        if (to != position) {
            statistics.seek();
            position = to;
        }
    }

    /** Does not wait, also not for a thread that reads. */
    @Override
    public long getPos() {
        return position;
    }

    @Override
    public boolean seekToNewSource(long target) {
        return false;
    }

    @Override
    public synchronized long skip(long count) throws IOException {
        checkOpen();
        if (count <= 0) {
            return 0;
        }
        long end = Math.max(file.sizeAtOpen(), position + count > file.sizeAtOpen()
                ? file.size() : 0);
        long step = Math.min(count, Math.max(end - position, 0));
        position += step;
        return step;
    }

    @Override
    public synchronized int available() throws IOException {
        checkOpen();
        long left = Math.max(file.sizeAtOpen() - position, 0);
        return (int) Math.min(left, Integer.MAX_VALUE);
    }

    /** Bytes of the buffer from the cursor on. */
    private int buffered() {
        long from = position - bufferStart;
        return from >= 0 && from < bufferLength ? bufferLength - (int) from : 0;
    }

    /** Fills the buffer at the cursor for a read of so many bytes; false at the end of the file. */
    private boolean fill(int wanted) throws IOException {
        boolean goesOn = bufferLength > 0 && position == bufferStart + bufferLength;
        window = goesOn ? 2 * window : WINDOW_BYTES_MIN;
        window = Math.min(Math.max(window, wanted), bufferBytesMax);
        if (buffer.length < window) {
            buffer = new byte[window];
        }
        bufferLength = 0;
        int bytes = file.read(position, buffer, 0, window);
        if (bytes < 0) {
            return false;
        }
        bufferStart = position;
        bufferLength = bytes;
        return true;
    }

    /** Bytes that a read of so many takes from the buffer; 0 if it goes past it, -1 at the end. */
    private int held(int length) throws IOException {
        int bytes = buffered();
        if (bytes == 0 && length < bufferBytesMax) {
            bytes = fill(length) ? bufferLength : -1;
        }
        return Math.min(bytes, length);
    }

    @Override
    public synchronized int read() throws IOException {
        checkOpen();
        if (buffered() == 0) {
            if (bufferBytesMax == 0) {
                byte[] single = new byte[1];
                return read(single, 0, 1) < 0 ? -1 : single[0] & 0xff;
            }
            if (!fill(1)) {
                return -1;
            }
        }
        int value = buffer[(int) (position - bufferStart)] & 0xff;
        position++;
        statistics.read(1);
        return value;
    }

    @Override
    public synchronized int read(byte[] target, int offset, int length) throws IOException {
        Objects.checkFromIndexSize(offset, length, target.length);
        checkOpen();
        if (length == 0) {
            return 0;
        }
        int bytes = held(length);
        if (bytes == 0) {
            bytes = file.read(position, target, offset, length);
        } else if (bytes > 0) {
            System.arraycopy(buffer, (int) (position - bufferStart), target, offset, bytes);
        }
        position += Math.max(bytes, 0);
        statistics.read(bytes);
        return bytes;
    }

    @Override
    public synchronized int read(ByteBuffer target) throws IOException {
        checkOpen();
        int length = target.remaining();
        if (length == 0) {
            return 0;
        }
        int bytes = held(length);
        if (bytes == 0) {
            bytes = file.read(position, target);
        } else if (bytes > 0) {
            target.put(buffer, (int) (position - bufferStart), bytes);
        }
        position += Math.max(bytes, 0);
        statistics.read(bytes);
        return bytes;
    }

    @Override
    public synchronized void unbuffer() {
        dropBuffer();
    }

    private void dropBuffer() {
        buffer = NO_BUFFER;
        bufferLength = 0;
    }

    // Positions: no lock, no buffer.

    @Override
    public int read(long at, byte[] target, int offset, int length) throws IOException {
        validatePositionedReadArgs(at, target, offset, length);
        int bytes = file.read(at, target, offset, length);
        statistics.read(bytes);
        // What is dropped while it is read is not dropped.
        Reference.reachabilityFence(this);
        return bytes;
    }

    @Override
    public void readFully(long at, byte[] target, int offset, int length) throws IOException {
        int done = 0;
        do {
            int bytes = read(at + done, target, offset + done, length - done);
            if (bytes < 0) {
                throw new EOFException(FSExceptionMessages.EOF_IN_READ_FULLY);
            }
            done += bytes;
        } while (done < length);
    }

    @Override
    public int read(long at, ByteBuffer target) throws IOException {
        if (at < 0) {
            throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK);
        }
        int bytes = file.read(at, target);
        statistics.read(bytes);
        Reference.reachabilityFence(this);
        return bytes;
    }

    @Override
    public void readFully(long at, ByteBuffer target) throws IOException {
        long from = at;
        while (target.hasRemaining()) {
            int bytes = read(from, target);
            if (bytes < 0) {
                throw new EOFException(FSExceptionMessages.EOF_IN_READ_FULLY);
            }
            from += bytes;
        }
    }

    @Override
    public void readVectored(
            List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate)
            throws IOException {
        readVectored(ranges, allocate, buffer -> { });
    }

    @Override
    public void readVectored(
            List<? extends FileRange> ranges, IntFunction<ByteBuffer> allocate,
            Consumer<ByteBuffer> release) throws IOException {
        // The buffer belongs to the thread that has the lock.
        if (file.isClosed()) {
            throw file.closedException();
        }
        new VectoredRead(this, file, statistics, waits, release).start(ranges, allocate);
    }

    // Without a copy.

    @Override
    public synchronized ByteBuffer read(
            ByteBufferPool pool, int maxLength, EnumSet<ReadOption> options) throws IOException {
        checkOpen();
        ByteBuffer bytes = zeroCopy.read(this, position, pool, maxLength);
        if (zeroCopy.isLent(bytes)) {
            position += bytes.remaining();
        }
        return bytes;
    }

    @Override
    public void releaseBuffer(ByteBuffer lent) {
        zeroCopy.release(lent);
    }

    // The rest.

    /** Has the node read ahead so many bytes at most, 0 for none; {@code null} is the default. */
    @Override
    public void setReadahead(Long bytesMax) throws IOException {
        if (bytesMax != null && bytesMax < 0) {
            throw new IllegalArgumentException("a read-ahead of " + bytesMax + " bytes");
        }
        file.setReadAhead(bytesMax);
    }

    /** Has the node keep nothing of what is read from now on; {@code null} is the default. */
    @Override
    public void setDropBehind(Boolean drop) throws IOException {
        file.setKeep(!Boolean.TRUE.equals(drop));
    }

    @Override
    public boolean hasCapability(String capability) {
        switch (capability.toLowerCase(Locale.ROOT)) {
            case StreamCapabilities.READAHEAD:
            case StreamCapabilities.DROPBEHIND:
            case StreamCapabilities.UNBUFFER:
            case StreamCapabilities.READBYTEBUFFER:
            case StreamCapabilities.PREADBYTEBUFFER:
            case StreamCapabilities.VECTOREDIO:
            case StreamCapabilities.IOSTATISTICS:
            case StreamCapabilities.IOSTATISTICS_CONTEXT:
                return true;
            default:
                return false;
        }
    }

    @Override
    public IOStatistics getIOStatistics() {
        return statistics.live();
    }

    /** Not under the lock of the stream: a thread that reads may have it for long. */
    @Override
    public void close() throws IOException {
        if (file.isClosed()) {
            return;
        }
        try {
            statistics.closing();
        } finally {
            try {
                file.close();
            } finally {
                watch.clean();
                zeroCopy.warnOfUnreleased();
                statistics.closed();
            }
        }
    }

    @Override
    public String toString() {
        return "TideInputStream{" + file.path() + ", " + getIOStatistics() + '}';
    }
}
