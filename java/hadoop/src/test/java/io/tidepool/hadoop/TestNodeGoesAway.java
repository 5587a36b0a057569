/*
 * Readers go on, and every byte is right, while the node is killed and started again, while its
 * store is resized to nothing and back, and while blocks are evicted under them.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Random;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.ReadOption;
import org.junit.Test;

public class TestNodeGoesAway {

    private static final int FILES = 4;
    private static final int LENGTH = (12 << 20) + 77;
    private static final int READERS = 3;
    private static final int KILLS = 4;

    private final AtomicBoolean done = new AtomicBoolean();
    private final AtomicLong bytesRead = new AtomicLong();

    @Test
    public void readersSeeTheirBytesWhateverHappensToTheNode() throws Exception {
        ExecutorService readers = Executors.newFixedThreadPool(READERS);
        try (var scene = Scene.start("40MiB")) {
            for (int file = 0; file < FILES; file++) {
                scene.make("/f" + file, file, LENGTH);
            }
            List<Future<?>> futures = new ArrayList<>();
            for (int reader = 0; reader < READERS; reader++) {
                long seed = reader;
                futures.add(readers.submit(() -> {
                    readOn(scene, new Random(seed));
                    return null;
                }));
            }
            for (int kill = 0; kill < KILLS; kill++) {
                disturb(scene, bytesRead.get());
                scene.node.kill();
                awaitBytes(bytesRead.get() + LENGTH);
                scene.node.restart();
            }
            awaitBytes(bytesRead.get() + LENGTH);
            done.set(true);
            for (Future<?> future : futures) {
                future.get();
            }
            awaitNode(scene);
        } finally {
            done.set(true);
            readers.shutdown();
        }
    }

    /** Takes the store away in all the ways there are, with reads in between. */
    private void disturb(Scene scene, long from) throws Exception {
        awaitBytes(from + LENGTH);
        scene.node.order("resize", "8MiB");
        awaitBytes(bytesRead.get() + LENGTH / 2);
        scene.node.order("resize", "0");
        awaitBytes(bytesRead.get() + LENGTH / 2);
        scene.node.ask("resize", "40MiB");
        awaitBytes(bytesRead.get() + LENGTH);
        for (int file = 0; file < FILES; file++) {
            scene.node.order("evict", scene.node.pfs().resolve("f" + file).toString());
        }
        awaitBytes(bytesRead.get() + LENGTH);
    }

    private void awaitBytes(long count) throws InterruptedException {
        long patience = System.nanoTime() + 120_000_000_000L;
        while (bytesRead.get() < count && !done.get()) {
            assertTrue("readers stand still", System.nanoTime() < patience);
            Thread.sleep(5);
        }
    }

    /** The node is used again after all: a client comes back by itself. */
    private static void awaitNode(Scene scene) throws Exception {
        for (int round = 0; round < 400 && !scene.client.isConnected(); round++) {
            scene.open("/f0").close();
            Thread.sleep(25);
        }
        assertTrue("the client is back at the node", scene.client.isConnected());
    }

    private void readOn(Scene scene, Random random) throws Exception {
        try {
            while (!done.get()) {
                int file = random.nextInt(FILES);
                try (var stream = scene.open("/f" + file)) {
                    readWhole(stream, file);
                    for (int round = 0; round < 20; round++) {
                        readHereAndThere(stream, file, random);
                    }
                }
            }
        } finally {
            done.set(true);
        }
    }

    private void readWhole(TideInputStream stream, long seed) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect(1 << 20);
        int offset = 0;
        for (int count; (count = stream.read(buffer.clear())) >= 0; offset += count) {
            assertEquals("at " + offset, -1, Scene.difference(seed, offset, buffer.flip()));
            bytesRead.addAndGet(count);
        }
        assertEquals("the whole file", LENGTH, offset);
        stream.seek(0);
    }

    private void readHereAndThere(TideInputStream stream, long seed, Random random)
            throws Exception {
        int length = 1 + random.nextInt(300_000);
        int at = random.nextInt(LENGTH - length);
        byte[] array = new byte[length];
        stream.readFully(at, array, 0, length);
        assertEquals("at " + at, -1, Scene.difference(seed, at, array, length));
        var range = FileRange.createFileRange(at, length);
        stream.readVectored(List.of(range), ByteBuffer::allocateDirect);
        assertEquals(-1, Scene.difference(seed, at, range.getData().get()));
        stream.seek(at);
        try {
            ByteBuffer lent = stream.read(null, length, EnumSet.noneOf(ReadOption.class));
            assertEquals("lent at " + at, -1, Scene.difference(seed, at, lent));
            stream.releaseBuffer(lent);
        } catch (UnsupportedOperationException nothingLent) {
            // No node, or no room to pin.
        }
        bytesRead.addAndGet(length);
    }
}
