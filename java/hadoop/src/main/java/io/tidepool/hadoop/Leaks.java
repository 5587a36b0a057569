/*
 * Closes files whose stream was dropped without being closed, and says so: a file holds descriptors
 * and mappings that the garbage collector does not see.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.lang.ref.Cleaner;
import java.util.concurrent.Executor;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class Leaks {

    private static final Logger LOG = LoggerFactory.getLogger(Leaks.class);

    /** One thread for all; it ends with these classes. */
    static final Cleaner CLEANER = Cleaner.create();

    /** Ends files that were written, which may wait for the node; what is cleaned must not. */
    private static final Executor ENDS = ends();

    private Leaks() {}

    private static Executor ends() {
        var ends = new ThreadPoolExecutor(1, 1, 5, TimeUnit.SECONDS, new LinkedBlockingQueue<>(),
                work -> {
                    Thread thread = new Thread(work, "tidepool-dropped");
                    thread.setDaemon(true);
                    return thread;
                });
        ends.allowCoreThreadTimeOut(true);
        return ends;
    }

    /**
     * Watches a stream.
     *
     * @param stream the object that users hold; the file must not refer to it
     * @param consequence what was lost with it, for the message
     */
    static Cleaner.Cleanable watch(Object stream, NativeFile file, String consequence) {
        return CLEANER.register(stream, () -> closeDropped(file, consequence));
    }

    private static void closeDropped(NativeFile file, String consequence) {
        if (file.isClosed()) {
            return;
        }
        if (file.isWritten()) {
            try {
                ENDS.execute(() -> close(file, consequence));
                return;
            } catch (Throwable full) {
                // Neither heap nor a thread is left, and no other call closes this file.
            }
        }
        close(file, consequence);
    }

    /** Closes before it tells, which takes heap. */
    private static void close(NativeFile file, String consequence) {
        IOException failure = null;
        try {
            file.close();
        } catch (IOException error) {
            failure = error;
        }
        LOG.warn("{} was dropped without being closed{}; close streams, for example with"
                + " try-with-resources", file.path(), consequence);
        if (failure != null) {
            LOG.warn("{} was dropped without being closed, and has an error: {}",
                    file.path(), failure.getMessage());
        }
    }
}
