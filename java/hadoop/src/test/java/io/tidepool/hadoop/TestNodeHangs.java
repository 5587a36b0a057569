/*
 * A node that is stopped and not dead: threads that have nothing to do with it go on, resident bytes
 * are read, and names are changed and files opened without it.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;
import static org.junit.Assert.fail;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.Test;

public class TestNodeHangs {

    private static final int LENGTH = 8 << 20;
    private static final int COLD_LENGTH = 64 << 20;
    private static final int READERS = 8;
    private static final int STEP = 100_000;
    private static final long HANGS_MS = 12_000;
    /** Far below how long the node hangs, and far beyond what anybody waits for it. */
    private static final long LONG_MS = 8_000;

    private final AtomicBoolean done = new AtomicBoolean();
    /** The longest that each kind of step took, in microseconds. */
    private final Map<String, Long> longest = new ConcurrentHashMap<>();

    private void time(String kind, Callable<?> step) throws Exception {
        long begun = System.nanoTime();
        step.call();
        longest.merge(kind, (System.nanoTime() - begun) / 1000, Math::max);
    }

    /** Reads resident bytes, at positions and at the cursor. */
    private Void readOn(Scene scene, int seed) throws Exception {
        byte[] bytes = new byte[STEP];
        try (var stream = scene.open("/warm")) {
            while (!done.get()) {
                stream.seek(0);
                for (int at = 0; at + STEP < LENGTH && !done.get(); at += STEP) {
                    int from = at;
                    time("resident read", () -> {
                        if (seed % 2 == 0) {
                            stream.readFully(from, bytes, 0, STEP);
                        } else {
                            assertEquals(STEP, stream.readNBytes(bytes, 0, STEP));
                        }
                        return null;
                    });
                    assertEquals(-1, Scene.difference(1, at, bytes, STEP));
                }
                stream.setDropBehind(seed % 3 == 0);
            }
        }
        return null;
    }

    /** Changes names, and opens what it made. */
    private Void change(FileSystem system) throws Exception {
        Path one = new Path("/one");
        Path two = new Path("/two");
        while (!done.get()) {
            try (FSDataOutputStream out = system.create(one)) {
                out.write(7);
            }
            time("rename", () -> system.rename(one, two));
            time("open", () -> {
                system.open(two).close();
                return null;
            });
            time("delete", () -> system.delete(two, false));
        }
        return null;
    }

    /** Has nothing to do with tide://. */
    private Void allocate() throws Exception {
        while (!done.get()) {
            time("elsewhere", () -> new byte[1 << 16]);
        }
        return null;
    }

    private static int descriptors() throws Exception {
        try (var all = java.nio.file.Files.list(java.nio.file.Path.of("/proc/self/fd"))) {
            return (int) all.count();
        }
    }

    private static void drop(Scene scene) throws Exception {
        scene.create("/dropped", null).write(1);
    }

    @Test
    public void aDroppedWriterHoldsUpNoCleaning() throws Exception {
        try (var scene = Scene.start("64MiB")) {
            scene.make("/file", 1, 100_000);
            int before = descriptors();
            List<TideInputStream> readers = new ArrayList<>();
            for (int count = 0; count < 50; count++) {
                readers.add(scene.open("/file"));
            }
            drop(scene);
            scene.node.hang();
            try {
                for (int round = 0; round < 10; round++) {
                    System.gc();
                    Thread.sleep(50);
                }
                assertTrue("streams are open", descriptors() >= before + 50);
                readers.clear();
                for (int round = 0; round < 200 && descriptors() > before + 20; round++) {
                    System.gc();
                    Thread.sleep(50);
                }
                int now = descriptors();
                assertTrue(before + " became " + now, now <= before + 20);
            } finally {
                scene.node.goOn();
            }
        }
    }

    /** Whether a thread is inside the native call that connects. */
    private static boolean connects(Thread thread) {
        StackTraceElement[] stack = thread.getStackTrace();
        return stack.length > 0 && stack[0].isNativeMethod()
                && stack[0].getMethodName().equals("connect");
    }

    @Test
    public void clientsOfDistinctOptionsConnectAtOnce() throws Exception {
        try (var scene = Scene.start("64MiB")) {
            scene.node.hang();
            List<Thread> threads = new ArrayList<>();
            List<NativeClient> clients = Collections.synchronizedList(new ArrayList<>());
            for (int index = 0; index < READERS; index++) {
                Map<String, String> options = scene.node.options();
                options.put(TideOptions.SPLIT_BYTES, index / 2 + 1 + "MiB");
                Thread thread = new Thread(() -> {
                    try {
                        clients.add(NativeClient.shared("user", options));
                    } catch (IOException error) {
                        throw new java.io.UncheckedIOException(error);
                    }
                });
                threads.add(thread);
                thread.start();
            }
            int atOnce = 0;
            while (threads.stream().anyMatch(Thread::isAlive)) {
                int now = (int) threads.stream().filter(TestNodeHangs::connects).count();
                atOnce = Math.max(atOnce, now);
                Thread.sleep(1);
            }
            scene.node.goOn();
            assertEquals(READERS, clients.size());
            assertEquals("one a set of options", READERS / 2, new HashSet<>(clients).size());
            assertTrue("one after the other", atOnce > 1);
            for (NativeClient client : clients) {
                client.close();
            }
        }
    }

    @Test
    public void anOpenOfWhatIsInMemoryAloneWaitsAndCanBeInterrupted() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try (var scene = Scene.start("64MiB")) {
            try (var stream = scene.create("/memory", Map.of(TideOptions.WRITE_MODE, "memory"))) {
                stream.write(Scene.bytes(1, 0, 100_000));
            }
            scene.make("/other", 2, 100);
            scene.node.hang();
            try {
                // From here on the client knows that the node does not answer.
                scene.open("/other").close();
                Thread[] waiting = new Thread[1];
                Future<TideInputStream> interrupted = threads.submit(() -> {
                    waiting[0] = Thread.currentThread();
                    return scene.open("/memory");
                });
                Future<TideInputStream> patient = threads.submit(() -> scene.open("/memory"));
                Thread.sleep(500);
                assertFalse("it waits for the node", interrupted.isDone() || patient.isDone());
                waiting[0].interrupt();
                try {
                    interrupted.get();
                    fail("nothing came");
                } catch (ExecutionException expected) {
                    Throwable cause = expected.getCause();
                    assertTrue(cause.toString(), cause instanceof InterruptedIOException);
                }
                scene.node.goOn();
                try (var stream = patient.get()) {
                    assertArrayEquals(Scene.bytes(1, 0, 100_000), stream.readAllBytes());
                }
            } finally {
                scene.node.goOn();
            }
        } finally {
            threads.shutdown();
        }
    }

    @Test
    public void nobodyWaitsLongForANodeThatHangs() throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        try (var scene = Scene.start("256MiB")) {
            scene.make("/warm", 1, LENGTH);
            scene.make("/cold", 2, COLD_LENGTH);
            try (var warm = scene.open("/warm")) {
                warm.readAllBytes();
            }
            Configuration configuration = new Configuration();
            scene.node.options().forEach(configuration::set);
            FileSystem system = FileSystem.newInstance(
                    java.net.URI.create("tide:///"), configuration);
            TideInputStream cold = scene.open("/cold");
            List<Future<Void>> all = new ArrayList<>();
            for (int reader = 0; reader < READERS; reader++) {
                int seed = reader;
                all.add(threads.submit(() -> readOn(scene, seed)));
            }
            all.add(threads.submit(this::allocate));
            Thread.sleep(1_000);
            Map<String, Long> before = new TreeMap<>(longest);
            scene.node.hang();
            longest.clear();
            Future<Integer> waits = threads.submit(() -> cold.read(new byte[1 << 20]));
            all.add(threads.submit(() -> change(system)));
            time("new file system", () -> {
                FileSystem.newInstance(java.net.URI.create("tide:///"), configuration).close();
                return null;
            });
            Thread.sleep(HANGS_MS / 2);
            assertFalse("it waits for the node", waits.isDone());
            time("getPos", () -> cold.getPos());
            time("close", () -> {
                cold.close();
                return null;
            });
            assertThrows("its stream is closed", ExecutionException.class, waits::get);
            Thread.sleep(HANGS_MS / 2);
            Map<String, Long> found = new TreeMap<>(longest);
            done.set(true);
            for (Future<Void> each : all) {
                each.get();
            }
            scene.node.goOn();
            system.close();
            System.out.println("longest while the node hung, in microseconds: " + found
                    + ", before: " + before);
            found.forEach((kind, took) -> assertTrue(kind, took < 1_000 * LONG_MS));
        } finally {
            done.set(true);
            threads.shutdown();
        }
    }
}
