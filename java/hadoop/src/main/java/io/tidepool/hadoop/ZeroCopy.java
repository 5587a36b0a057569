/*
 * Reads without a copy: buffers over the node's memory where it lends, and buffers of the caller's
 * pool where it does not. Remembers which is which until they are released.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.IdentityHashMap;
import java.util.Map;
import org.apache.hadoop.fs.ByteBufferUtil;
import org.apache.hadoop.io.ByteBufferPool;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class ZeroCopy {

    private static final Logger LOG = LoggerFactory.getLogger(ZeroCopy.class);
    private static final ByteBuffer EMPTY = ByteBuffer.allocateDirect(0).asReadOnlyBuffer();

    private final NativeFile file;
    private final ReadStatistics statistics;

    /** What gets a buffer back: a loan, or a pool. */
    private final Map<ByteBuffer, Object> owners = new IdentityHashMap<>();

    ZeroCopy(NativeFile file, ReadStatistics statistics) {
        this.file = file;
        this.statistics = statistics;
    }

    /**
     * Bytes from the cursor of a stream. The caller moves the cursor over a buffer that is lent; a
     * buffer of the pool was read through the stream, which moved it.
     *
     * @return {@code null} at the end of the file
     */
    ByteBuffer read(TideInputStream stream, long position, ByteBufferPool pool, int maxLength)
            throws IOException {
        if (maxLength < 0) {
            throw new IllegalArgumentException("a buffer of " + maxLength + " bytes");
        }
        if (maxLength == 0) {
            return EMPTY;
        }
        NativeLoan.Lent lent = file.lend(position, maxLength);
        if (lent != null) {
            statistics.zeroCopy(lent.buffer().remaining());
            own(lent.buffer(), lent.loan());
            return lent.buffer();
        }
        ByteBuffer copied = ByteBufferUtil.fallbackRead(stream, pool, maxLength);
        if (copied != null) {
            own(copied, pool);
        }
        return copied;
    }

    private synchronized void own(ByteBuffer buffer, Object owner) {
        owners.put(buffer, owner);
    }

    /** Whether a buffer is the node's memory. */
    synchronized boolean isLent(ByteBuffer buffer) {
        return buffer != null && owners.get(buffer) instanceof NativeLoan;
    }

    /** Gives a buffer back to where it is from. */
    void release(ByteBuffer buffer) {
        if (buffer == EMPTY) {
            return;
        }
        Object owner;
        synchronized (this) {
            owner = owners.remove(buffer);
        }
        if (owner instanceof NativeLoan loan) {
            loan.giveBack();
        } else if (owner instanceof ByteBufferPool pool) {
            pool.putBuffer(buffer);
        } else {
            throw new IllegalArgumentException(
                    "the buffer is not one of this stream, or was released before");
        }
    }

    /** Says so where buffers outlive the stream; they stay valid until they are released. */
    synchronized void warnOfUnreleased() {
        if (!owners.isEmpty()) {
            LOG.warn("{} was closed while {} of its buffers are not released; the node keeps their"
                    + " memory until they are", file.path(), owners.size());
        }
    }
}
