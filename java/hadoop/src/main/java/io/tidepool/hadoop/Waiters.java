/*
 * Threads that wait for ranges of vectored reads, those of all streams of a client. Each stream has
 * one of its own while it waits for anything, whatever the others wait for, and more as long as
 * there are not too many in all. They end when idle.
 */
package io.tidepool.hadoop;

import java.util.ArrayDeque;
import java.util.concurrent.RejectedExecutionException;
import java.util.concurrent.SynchronousQueue;
import java.util.concurrent.ThreadPoolExecutor;
import java.util.concurrent.TimeUnit;

final class Waiters {

    /** Threads of one stream, at most. */
    private static final int OF_STREAM_MAX = 8;
    /** Threads beyond which each stream has one. */
    private static final int SEVERAL_MAX = 32;
    private static final long IDLE_S = 5;

    private final ThreadPoolExecutor threads = new ThreadPoolExecutor(
            0, Integer.MAX_VALUE, IDLE_S, TimeUnit.SECONDS, new SynchronousQueue<>(),
            Waiters::thread);
    /** Under the lock of this, as what streams wait for is. */
    private int busy;

    /** What one stream waits for. */
    static final class OfStream {
        private final ArrayDeque<Runnable> waits = new ArrayDeque<>();
        private int busy;
    }

    private static Thread thread(Runnable work) {
        Thread thread = new Thread(work, "tidepool-vectored");
        thread.setDaemon(true);
        return thread;
    }

    /**
     * Has a wait of a stream done by one of the threads, in its turn.
     *
     * @throws RejectedExecutionException where there are no threads any more, or none can be made:
     *     then it is not done
     */
    synchronized void execute(OfStream stream, Runnable wait) {
        if (threads.isShutdown()) {
            throw new RejectedExecutionException("the file system is closed");
        }
        stream.waits.add(wait);
        boolean mayHaveMore = stream.busy < OF_STREAM_MAX && busy < SEVERAL_MAX;
        if (stream.busy > 0 && !mayHaveMore) {
            return;
        }
        try {
            threads.execute(() -> work(stream));
        } catch (OutOfMemoryError error) {
            if (stream.busy > 0) {
                return;
            }
            stream.waits.removeLast();
            throw new RejectedExecutionException("no thread can be made", error);
        }
        stream.busy++;
        busy++;
    }

    private void work(OfStream stream) {
        for (Runnable wait = next(stream); wait != null; wait = next(stream)) {
            try {
                wait.run();
            } catch (Throwable error) {
                // A callback of the caller's, which has no thread that it could end.
                Thread thread = Thread.currentThread();
                thread.getUncaughtExceptionHandler().uncaughtException(thread, error);
            }
        }
    }

    private synchronized Runnable next(OfStream stream) {
        Runnable wait = stream.waits.poll();
        if (wait == null) {
            stream.busy--;
            busy--;
        }
        return wait;
    }

    /** Threads that are at it. */
    synchronized int busy() {
        return busy;
    }

    /** Takes no more; what was begun ends. */
    synchronized void shutDown() {
        threads.shutdown();
    }
}
