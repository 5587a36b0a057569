/*
 * Direct buffers that streams write through, kept for the next stream: making one costs more than
 * writing a small file does. Keeps a bounded number; the rest is the garbage collector's.
 */
package io.tidepool.hadoop;

import java.nio.ByteBuffer;
import java.util.ArrayDeque;

final class BufferPool {

    private static final int KEPT = 8;

    private final ArrayDeque<ByteBuffer> free = new ArrayDeque<>();
    private boolean cleared;

    /** An empty direct buffer of exactly this capacity. */
    ByteBuffer take(int bytes) {
        synchronized (this) {
            for (var each = free.iterator(); each.hasNext(); ) {
                ByteBuffer buffer = each.next();
                if (buffer.capacity() == bytes) {
                    each.remove();
                    return buffer.clear();
                }
            }
        }
        return ByteBuffer.allocateDirect(bytes);
    }

    /** Takes a buffer back that is not used any more. */
    synchronized void give(ByteBuffer buffer) {
        if (!cleared) {
            if (free.size() == KEPT) {
                free.removeLast();
            }
            free.addFirst(buffer);
        }
    }

    /** Lets go of all buffers, and of those that come back later. */
    synchronized void clear() {
        cleared = true;
        free.clear();
    }
}
