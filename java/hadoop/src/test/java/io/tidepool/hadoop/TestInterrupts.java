/*
 * A thread that is interrupted while it waits for bytes waits no more, and nobody else notices; nor
 * does one whose stream is closed. The parallel file system of these tests answers no read before
 * they end.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.PathIOException;
import org.junit.Test;
import org.junit.function.ThrowingRunnable;

public class TestInterrupts {

    private static final long SEED = 5;
    private static final int LENGTH = 5 << 20;
    private static final int RANGES = 12;
    private static final long PATIENCE_S = 60;
    /** Looks at a thread, one after the other, that tell that it waits. */
    private static final int LOOKS = 5;
    private static final long LOOK_INTERVAL_MS = 20;

    /** A thread that reads. */
    private static final class Reader {
        final FutureTask<Integer> task;
        final Thread thread;

        Reader(Callable<Integer> read) {
            task = new FutureTask<>(read);
            thread = new Thread(task, "reader");
            thread.setDaemon(true);
            thread.start();
        }

        private boolean isInNativeCode() {
            StackTraceElement[] stack = thread.getStackTrace();
            return stack.length > 0 && stack[0].isNativeMethod()
                    && stack[0].getClassName().equals(NativeFile.class.getName());
        }

        void awaitWait() throws InterruptedException {
            long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
            for (int looks = 0; looks < LOOKS; looks = isInNativeCode() ? looks + 1 : 0) {
                assertTrue("the read never waits", System.nanoTime() < end);
                Thread.sleep(LOOK_INTERVAL_MS);
            }
        }

        void assertEndsByInterrupt() throws Exception {
            thread.interrupt();
            thread.join(TimeUnit.SECONDS.toMillis(PATIENCE_S));
            assertFalse("the read waits on", thread.isAlive());
            var error = assertThrows(ExecutionException.class, task::get);
            assertEquals(ClosedByInterruptException.class, error.getCause().getClass());
        }
    }

    private static void readWarm(Scene scene) throws IOException {
        try (var warm = scene.open("/warm")) {
            byte[] bytes = new byte[LENGTH];
            warm.readFully(0, bytes, 0, LENGTH);
            assertEquals(-1, Scene.difference(SEED, 0, bytes, LENGTH));
            // Asks the node.
            assertThrows(EOFException.class, () -> warm.seek(LENGTH + 1L));
        }
    }

    @Test
    public void aWaitEndsAndOthersGoOn() throws Exception {
        try (var scene = Scene.start("64MiB", "--fault", "read:slow=3600s")) {
            try (var stream = scene.create("/warm", null)) {
                stream.write(Scene.bytes(SEED, 0, LENGTH));
            }
            readWarm(scene);
            for (String shortCircuit : new String[] {"true", "false"}) {
                var options = scene.node.options();
                options.put(TideOptions.SHORT_CIRCUIT, shortCircuit);
                try (NativeClient client = NativeClient.connect(options)) {
                    interruptReaders(scene, client, "/cold-" + shortCircuit);
                }
            }
            readWarm(scene);
        }
    }

    private static void interruptReaders(Scene scene, NativeClient client, String name)
            throws Exception {
        scene.make(name, SEED, LENGTH);
        TideInputStream array = open(client, name);
        TideInputStream direct = open(client, name);
        try (TideInputStream other = open(client, name)) {
            ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
            Reader patient = new Reader(() -> other.read(0, new byte[10], 0, 10));
            Reader first = new Reader(() -> array.read(0, new byte[1 << 20], 0, 1 << 20));
            Reader second = new Reader(() -> direct.read(0, buffer));
            for (Reader reader : new Reader[] {patient, first, second}) {
                reader.awaitWait();
            }
            first.assertEndsByInterrupt();
            second.assertEndsByInterrupt();
            assertThrows(IOException.class, array::read);
            assertTrue("it was not meant", patient.thread.isAlive());
            assertTrue(client.isConnected());
            assertEquals(LENGTH, other.available());
            readWarm(scene);
            patient.assertEndsByInterrupt();
        }
    }

    @Test
    public void aCloseEndsWaitsToo() throws Exception {
        try (var scene = Scene.start("64MiB", "--fault", "read:slow=3600s")) {
            for (String shortCircuit : new String[] {"true", "false"}) {
                var options = scene.node.options();
                options.put(TideOptions.SHORT_CIRCUIT, shortCircuit);
                String name = "/cold-" + shortCircuit;
                scene.make(name, SEED, LENGTH);
                try (NativeClient client = NativeClient.connect(options)) {
                    closeUnderReaders(open(client, name));
                    closeUnderRanges(client, open(client, name));
                    interruptWhoWaitsForARange(client, open(client, name));
                }
            }
        }
    }

    private static void closeUnderReaders(TideInputStream stream) throws Exception {
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
        Reader[] readers = {
            new Reader(() -> stream.read(new byte[1 << 20])),
            new Reader(() -> stream.read(0, new byte[1 << 20], 0, 1 << 20)),
            new Reader(() -> stream.read(0, buffer)),
        };
        for (Reader reader : readers) {
            reader.awaitWait();
        }
        stream.close();
        for (Reader reader : readers) {
            assertClosed(() -> reader.task.get(PATIENCE_S, TimeUnit.SECONDS));
        }
    }

    private static void assertClosed(ThrowingRunnable wait) {
        var error = assertThrows(ExecutionException.class, wait);
        assertEquals(PathIOException.class, error.getCause().getClass());
        assertTrue(error.getCause().getMessage().contains("Stream is closed!"));
    }

    /** More ranges than threads that wait for them. */
    private static List<FileRange> startRanges(TideInputStream stream) throws IOException {
        List<FileRange> ranges = new ArrayList<>();
        for (int index = 0; index < RANGES; index++) {
            ranges.add(FileRange.createFileRange(index * (LENGTH / RANGES), 1000));
        }
        stream.readVectored(ranges, ByteBuffer::allocate);
        return ranges;
    }

    private static void assertNoThreadIsTaken(NativeClient client) throws InterruptedException {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (client.waiters.busy() > 0 && System.nanoTime() < end) {
            Thread.sleep(LOOK_INTERVAL_MS);
        }
        assertEquals(0, client.waiters.busy());
    }

    private static void closeUnderRanges(NativeClient client, TideInputStream stream)
            throws Exception {
        List<FileRange> ranges = startRanges(stream);
        stream.close();
        for (FileRange range : ranges) {
            assertClosed(() -> range.getData().get(PATIENCE_S, TimeUnit.SECONDS));
        }
        assertNoThreadIsTaken(client);
    }

    private static void interruptWhoWaitsForARange(NativeClient client, TideInputStream stream)
            throws Exception {
        List<FileRange> ranges = startRanges(stream);
        Reader reader = new Reader(() -> ranges.get(RANGES / 2).getData().get().remaining());
        reader.thread.interrupt();
        var error = assertThrows(ExecutionException.class,
                () -> reader.task.get(PATIENCE_S, TimeUnit.SECONDS));
        assertEquals(InterruptedException.class, error.getCause().getClass());
        for (FileRange range : ranges) {
            assertClosed(() -> range.getData().get(PATIENCE_S, TimeUnit.SECONDS));
        }
        assertNoThreadIsTaken(client);
        assertThrows(IOException.class, stream::read);
    }

    private static TideInputStream open(NativeClient client, String name) throws IOException {
        Map<String, String> none = null;
        NativeFile file = NativeFile.open(client, name, NativeFile.READ, 0, none);
        return new TideInputStream(file, 4096, null, null);
    }
}
