/*
 * An open file: reads and writes at offsets, from and into Java's memory. It has neither position
 * nor buffer; the streams have. Many threads may use it, and any of them may close it.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.util.Map;
import java.util.Objects;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.PathIOException;

final class NativeFile extends NativeHandle {

    /** What an open asks for, as the native library has it too. */
    static final int WRITE = 1;
    static final int READ = 2;
    static final int CREATE = 4;
    static final int CREATE_NEW = 8;
    static final int TRUNCATE = 16;
    static final int APPEND = 32;

    /** The native library's answer where a read has to wait, or waits no more. */
    private static final int MUST_WAIT = -2;

    private final NativeClient client;
    private final String path;
    private final boolean isWritten;
    private final long sizeAtOpen;
    /** As the native library said it last. */
    private volatile boolean mayBeLost;

    private NativeFile(long handle, NativeClient client, String path, boolean isWritten) {
        super(handle);
        this.client = client;
        this.path = path;
        this.isWritten = isWritten;
        this.sizeAtOpen = sizeAtOpen(handle);
        this.mayBeLost = isWritten && mayBeLost(handle);
    }

    /** Opens a file of whose reads nothing is known. */
    static NativeFile open(
            NativeClient client, String path, int flags, int modeBits, Map<String, String> options)
            throws IOException {
        return open(client, path, flags, modeBits, options, null);
    }

    /**
     * Opens a file.
     *
     * @param path absolute path below {@code tide:}
     * @param flags a sum of the flags above
     * @param modeBits permissions of a file that is created, whatever the umask of the process
     * @param options per-open options, or {@code null}
     * @param reads what is known of the reads to come, or {@code null}
     */
    static NativeFile open(
            NativeClient client, String path, int flags, int modeBits, Map<String, String> options,
            ReadPlan reads) throws IOException {
        String[] pairs = NativeClient.pairs(options);
        long[] numbers = reads == null ? null : reads.numbers();
        long handle = client.enter();
        try {
            long file = open(handle, path, flags, modeBits, pairs, numbers);
            if (file == 0) {
                throw new InterruptedIOException(path + ": interrupted while it was opened");
            }
            try {
                return new NativeFile(file, client, path, (flags & WRITE) != 0);
            } catch (Throwable error) {
                // The heap may be full.
                release(file);
                throw error;
            }
        } finally {
            client.leave();
        }
    }

    /** Path below {@code tide:}. */
    String path() {
        return path;
    }

    /** The client that opened this. */
    NativeClient client() {
        return client;
    }

    /** Length in bytes when it was opened. */
    long sizeAtOpen() {
        return sizeAtOpen;
    }

    /** Length in bytes of a file that is read. Waits, if it must, as a read does. */
    long size() throws IOException {
        long handle = enter();
        try {
            long bytes = size(handle);
            while (bytes == MUST_WAIT) {
                checkGoesOn();
                bytes = size(handle);
            }
            return bytes;
        } finally {
            leave();
        }
    }

    /**
     * Reads at an offset into the rest of a buffer and moves its position.
     *
     * @return bytes, at least one; -1 at the end of the file; 0 where the buffer is full
     */
    int read(long offset, ByteBuffer buffer) throws IOException {
        // Taken in this order, the range is within the buffer whatever other threads do to it.
        int limit = buffer.limit();
        int position = buffer.position();
        int length = limit - position;
        if (buffer.isReadOnly()) {
            throw new IllegalArgumentException("the buffer is read-only");
        }
        if (!buffer.isDirect()) {
            int bytes = read(offset, buffer.array(), buffer.arrayOffset() + position, length);
            buffer.position(position + Math.max(bytes, 0));
            return bytes;
        }
        if (length <= 0) {
            return 0;
        }
        long handle = enter();
        int bytes;
        try {
            bytes = readDirect(handle, offset, buffer, position, length, false);
            while (bytes == MUST_WAIT) {
                checkGoesOn();
                bytes = readDirect(handle, offset, buffer, position, length, true);
            }
        } finally {
            leave();
        }
        buffer.position(position + bytes);
        return bytes == 0 ? -1 : bytes;
    }

    /** The same into an array. */
    int read(long offset, byte[] array, int start, int length) throws IOException {
        Objects.checkFromIndexSize(start, length, array.length);
        if (length == 0) {
            return 0;
        }
        long handle = enter();
        try {
            int bytes = readArray(handle, offset, array, start, length, false);
            while (bytes == MUST_WAIT) {
                checkGoesOn();
                bytes = readArray(handle, offset, array, start, length, true);
            }
            return bytes == 0 ? -1 : bytes;
        } finally {
            leave();
        }
    }

    /**
     * Reads what is resident of many ranges, in one call, and has the node bring in the rest.
     *
     * @param targets direct buffers, or arrays
     * @param places for each target a position in it and a length, which must lie within it; the
     *     length is replaced by the bytes that were read, or by a negative number
     */
    void readRangesHeld(long[] offsets, Object[] targets, int[] places) throws IOException {
        order(handle -> readRangesHeld(handle, offsets, targets, places));
    }

    /** Called by the native library now and then while a read or an open waits. */
    private static boolean isInterrupted() {
        return Thread.currentThread().isInterrupted();
    }

    /** No thread waits that should end: one that is interrupted closes the file, as a channel. */
    private void checkGoesOn() throws IOException {
        if (isClosed()) {
            throw closedException();
        }
        if (isInterrupted()) {
            endReads();
            throw new ClosedByInterruptException();
        }
    }

    /** Closes a file that is read; threads that wait for its bytes wait no more. */
    void endReads() {
        long handle = enterIfOpen();
        if (handle == 0) {
            return;
        }
        try {
            if (shut()) {
                endWaits(handle);
            }
        } finally {
            leave();
        }
    }

    /** Has the node bring a range in, without waiting. */
    void prefetch(long offset, long length) throws IOException {
        order(handle -> prefetch(handle, offset, length));
    }

    /** Reads ahead so many bytes at most, 0 for none; {@code null} is as the open said. */
    void setReadAhead(Long bytesMax) throws IOException {
        order(handle -> setReadAhead(handle, bytesMax == null ? -1 : bytesMax));
    }

    /** Whether what is read and written from now on is worth keeping in memory. */
    void setKeep(boolean keep) throws IOException {
        order(handle -> setKeep(handle, keep));
    }

    /** Whether what is written may end with the node, so that no sync makes it durable. */
    boolean mayBeLost() {
        long handle = enterIfOpen();
        if (handle == 0) {
            return mayBeLost;
        }
        try {
            mayBeLost = mayBeLost(handle);
            return mayBeLost;
        } finally {
            leave();
        }
    }

    /** Bytes by level that did not come from memory held here; {@code null} if closed. */
    long[] levels() {
        long handle = enterIfOpen();
        if (handle == 0) {
            return null;
        }
        try {
            return levels(handle);
        } finally {
            leave();
        }
    }

    /** Whether it is open for writing, so that its close may wait for the node. */
    boolean isWritten() {
        return isWritten;
    }

    /** Borrows bytes without a copy; {@code null} where the node cannot lend. */
    NativeLoan.Lent lend(long offset, int length) throws IOException {
        return ask(handle -> NativeLoan.lend(client, handle, offset, length));
    }

    /** Writes the rest of a direct buffer at an offset, or at the end of a file open to append. */
    void write(long offset, ByteBuffer buffer) throws IOException {
        // No object is made: a write goes on where the heap is full.
        long handle = enter();
        try {
            write(handle, offset, buffer, buffer.position(), buffer.remaining());
        } finally {
            leave();
        }
        buffer.position(buffer.limit());
    }

    /** Makes durable what was written. */
    void sync() throws IOException {
        order(handle -> sync(handle));
    }

    /**
     * Keeps the promise of the write mode, then closes. A file that is only read closes when the
     * last thread that reads it leaves: reads of what is resident go to their end, and those that
     * wait end without bytes.
     */
    @Override
    public void close() throws IOException {
        if (!isWritten) {
            endReads();
            return;
        }
        long handle = enterIfOpen();
        if (handle == 0) {
            return;
        }
        try {
            if (shut()) {
                finish(handle);
            }
        } finally {
            leave();
        }
    }

    @Override
    IOException closedException() {
        return new PathIOException(path, FSExceptionMessages.STREAM_IS_CLOSED);
    }

    @Override
    void free(long handle) {
        release(handle);
    }

    private static native long open(
            long client, String path, int flags, int modeBits, String[] options, long[] reads)
            throws IOException;

    private static native void finish(long handle) throws IOException;

    private static native void release(long handle);

    private static native void endWaits(long handle);

    private static native long size(long handle) throws IOException;

    private static native long sizeAtOpen(long handle);

    private static native long[] levels(long handle);

    private static native void setReadAhead(long handle, long bytesMax);

    private static native void setKeep(long handle, boolean keep);

    private static native boolean mayBeLost(long handle);

    private static native void prefetch(long handle, long offset, long length) throws IOException;

    private static native void readRangesHeld(
            long handle, long[] offsets, Object[] targets, int[] places) throws IOException;

    private static native int readDirect(
            long handle, long offset, ByteBuffer buffer, int position, int length, boolean waits)
            throws IOException;

    private static native int readArray(
            long handle, long offset, byte[] array, int position, int length, boolean waits)
            throws IOException;

    private static native void write(
            long handle, long offset, ByteBuffer buffer, int position, int length)
            throws IOException;

    private static native void sync(long handle) throws IOException;
}
