/*
 * A connection to the node of this machine, or to the parallel file system where there is none,
 * with its options and the directory that tide:/// stands for. NativeFile opens files, NativeNames
 * uses names.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.lang.ref.WeakReference;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.WeakHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.util.ShutdownHookManager;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

final class NativeClient extends NativeHandle {

    private static final Logger LOG = LoggerFactory.getLogger(NativeClient.class);

    /**
     * Time for all clients of a JVM that ends to hand over what their streams have gathered. Hadoop
     * waits 30 s for what it does at the end, and then as long for its threads.
     */
    private static final long END_MS = 10_000;

    /** Mappings of borrowed bytes that Java has not let go of; the kernel has a limit of them. */
    final AtomicInteger mappings = new AtomicInteger();

    /** Buffers of streams that write. */
    final BufferPool buffers = new BufferPool();

    /** Streams that write and are not closed. It keeps none of them from the garbage collector. */
    private final Set<TideOutputStream> writers =
            Collections.newSetFromMap(new WeakHashMap<>());

    /** Threads for ranges of vectored reads that have to wait. */
    final Waiters waiters = new Waiters();

    private volatile Sizes ownSizes;

    /** When a JVM that ends waits no more, by its clock in nanoseconds; 0 while it does not end. */
    private static final AtomicLong END = new AtomicLong();

    /** Clients that file contexts share, as long as one of them is used. */
    private static final Map<Object, Place> SHARED = new HashMap<>();

    private final State state;

    /** Where a shared client is. Its lock is that of connecting, which may wait for a node. */
    private static final class Place {
        /** Threads that are about to look here, under the lock of {@link #SHARED}. */
        private int visitors;
        private volatile WeakReference<NativeClient> held = new WeakReference<>(null);

        private synchronized NativeClient find(Map<String, String> options) throws IOException {
            NativeClient client = held.get();
            if (client == null) {
                client = connect(options);
                held = new WeakReference<>(client);
            }
            return client;
        }
    }

    private NativeClient(long handle) {
        super(handle);
        state = new State(handle);
        // FileContext closes nothing: the last file system and stream that use this end it.
        Leaks.CLEANER.register(this, state);
    }

    /** What is to be freed, without the object that it belongs to. */
    private static final class State implements Runnable {
        private final long handle;
        private final AtomicBoolean isFreed = new AtomicBoolean();

        State(long handle) {
            this.handle = handle;
        }

        @Override
        public void run() {
            if (isFreed.compareAndSet(false, true)) {
                disconnect(handle);
            }
        }
    }

    /**
     * As {@link #connect}, but all calls with the same options for the same user get one client.
     * It is not closed, and ends when nothing refers to it any more. A call for another client does
     * not wait until this one is connected.
     */
    static NativeClient shared(Object user, Map<String, String> options) throws IOException {
        Object key = List.of(user, Map.copyOf(options));
        Place place;
        synchronized (SHARED) {
            SHARED.values().removeIf(each -> each.visitors == 0 && each.held.get() == null);
            place = SHARED.computeIfAbsent(key, unknown -> new Place());
            place.visitors++;
        }
        try {
            return place.find(options);
        } finally {
            synchronized (SHARED) {
                place.visitors--;
            }
        }
    }

    /** A stream that writes begins. */
    void begins(TideOutputStream writer) {
        synchronized (writers) {
            writers.add(writer);
        }
    }

    /** It is closed. */
    void ends(TideOutputStream writer) {
        synchronized (writers) {
            writers.remove(writer);
        }
    }

    /**
     * Hands over what streams have gathered that may not be closed, as at the end of a JVM. That is
     * not held up for long by a node that does not answer.
     */
    void flushWriters() {
        if (!ShutdownHookManager.get().isShutdownInProgress()) {
            flushAll();
            return;
        }
        long now = System.nanoTime();
        long end = END.updateAndGet(
                known -> known == 0 ? now + TimeUnit.MILLISECONDS.toNanos(END_MS) : known);
        flushWriters(TimeUnit.NANOSECONDS.toMillis(end - now));
    }

    /** The same, but after so many milliseconds others go on while it does. */
    void flushWriters(long patienceMs) {
        Thread thread = new Thread(this::flushAll, "tidepool-end");
        thread.setDaemon(true);
        thread.start();
        try {
            // No time at all would be forever.
            thread.join(Math.max(patienceMs, 1));
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
        if (thread.isAlive()) {
            LOG.warn("streams are not closed and the node takes nothing: what they have gathered"
                    + " is lost if the JVM ends now; close streams, and look at `tidepool status`");
        }
    }

    private void flushAll() {
        List<TideOutputStream> open;
        synchronized (writers) {
            open = List.copyOf(writers);
        }
        for (TideOutputStream writer : open) {
            try {
                writer.flushIfOpen();
            } catch (IOException error) {
                LOG.warn("{}", error.getMessage());
            }
        }
    }

    @Override
    public synchronized void close() throws IOException {
        super.close();
        buffers.clear();
        waiters.shutDown();
    }

    /**
     * Connects. Without a node this succeeds all the same, unless the options forbid it.
     *
     * @param options `fs.tide.*` keys with their values, understood by the native library
     */
    static NativeClient connect(Map<String, String> options) throws IOException {
        return connect(options, false);
    }

    /**
     * As {@link #connect(Map)}.
     *
     * @param shares whether one connection serves all that share with the same options; each is
     *     closed by itself, and the connection ends with the last
     */
    static NativeClient connect(Map<String, String> options, boolean shares) throws IOException {
        NativeLibrary.load();
        long handle = connect(pairs(options), shares);
        try {
            return new NativeClient(handle);
        } catch (Throwable error) {
            // The heap may be full.
            disconnect(handle);
            throw error;
        }
    }

    /** A map as the native library takes it: keys and values in turn. */
    static String[] pairs(Map<String, String> options) {
        if (options == null || options.isEmpty()) {
            return null;
        }
        String[] pairs = new String[2 * options.size()];
        int next = 0;
        for (Map.Entry<String, String> option : options.entrySet()) {
            pairs[next++] = option.getKey();
            pairs[next++] = option.getValue();
        }
        return pairs;
    }

    /** Whether a node answers, as far as is known. */
    boolean isConnected() throws IOException {
        return ask(handle -> isConnected(handle));
    }

    /** The directory of the parallel file system that {@code tide:///} stands for. */
    String pfsRoot() throws IOException {
        return ask(handle -> pfsRoot(handle));
    }

    /** Sizes that an open with these options has; {@code null} is none beside the client's. */
    Sizes sizes(Map<String, String> options) throws IOException {
        boolean isOwn = options == null || options.isEmpty();
        if (isOwn && ownSizes != null) {
            return ownSizes;
        }
        long handle = enter();
        try {
            long[] sizes = sizes(handle, pairs(options));
            Sizes found = new Sizes((int) sizes[0], (int) sizes[1], sizes[2]);
            if (isOwn) {
                ownSizes = found;
            }
            return found;
        } finally {
            leave();
        }
    }

    /** Sizes in bytes. */
    record Sizes(int readBufferBytes, int writeBufferBytes, long splitBytes) {}

    @Override
    IOException closedException() {
        return new IOException("while using a file system: Filesystem closed");
    }

    @Override
    void free(long handle) {
        state.run();
    }

    /** Called by the native library: what the user should know, one line. */
    @SuppressWarnings("unused")
    private static void notice(String line) {
        LOG.warn("{}", line);
    }

    private static native long connect(String[] options, boolean shares) throws IOException;

    private static native void disconnect(long handle);

    private static native boolean isConnected(long handle);

    private static native String pfsRoot(long handle) throws IOException;

    private static native long[] sizes(long handle, String[] options) throws IOException;
}
