/*
 * A loan: a buffer over bytes of the node's memory, until they are given back. The addresses of the
 * buffer stay valid until nothing refers to it or to a view of it; after the return they are zeros.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;

final class NativeLoan extends NativeHandle {

    /** Mappings of one client; half of what Linux lets a process have by default. */
    private static final int MAPPINGS_MAX = 32_000;

    private final NativeClient client;

    private NativeLoan(NativeClient client, long handle) {
        super(handle);
        this.client = client;
    }

    /** A loan with its buffer. The loan does not keep the buffer: its end is that of the loan. */
    record Lent(NativeLoan loan, ByteBuffer buffer) {}

    /** Borrows; {@code null} where the node cannot lend. */
    static Lent lend(NativeClient client, long file, long offset, int length) throws IOException {
        if (client.mappings.get() >= MAPPINGS_MAX) {
            return null;
        }
        long[] handle = new long[1];
        ByteBuffer whole = lend(file, offset, length, handle, NativeFile.class);
        if (whole == null) {
            return null;
        }
        client.mappings.incrementAndGet();
        NativeLoan loan;
        try {
            loan = new NativeLoan(client, handle[0]);
            // Every view refers to the whole, so this runs after the last of them is gone.
            Leaks.CLEANER.register(whole, loan::shut);
        } catch (Throwable error) {
            // The heap may be full.
            client.mappings.decrementAndGet();
            unmap(handle[0]);
            throw error;
        }
        return new Lent(loan, whole.asReadOnlyBuffer());
    }

    /** Gives the bytes back to the node. */
    void giveBack() {
        long handle = enterIfOpen();
        if (handle == 0) {
            return;
        }
        try {
            giveBack(handle);
        } finally {
            leave();
        }
    }

    @Override
    IOException closedException() {
        return new IOException("while using borrowed bytes: they were given back");
    }

    @Override
    void free(long handle) {
        client.mappings.decrementAndGet();
        unmap(handle);
    }

    private static native ByteBuffer lend(
            long file, long offset, int length, long[] loan, Class<NativeFile> fileClass)
            throws IOException;

    private static native void giveBack(long handle);

    private static native void unmap(long handle);
}
