/*
 * What is written arrives, when it is promised to: at a flush, a sync, the close; what is given up
 * leaves nothing; errors reach the caller.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.StreamCapabilities;
import org.junit.AfterClass;
import org.junit.BeforeClass;
import org.junit.Test;

public class TestTideOutputStream {

    private static Scene scene;

    @BeforeClass
    public static void start() throws IOException {
        scene = Scene.start("128MiB");
    }

    @AfterClass
    public static void stop() throws IOException {
        scene.close();
    }

    @Test
    public void writesOfEverySizeArriveInOrder() throws IOException {
        Random random = new Random(3);
        for (String mode : new String[] {"through", "bypass"}) {
            var options = Map.of(
                    TideOptions.WRITE_MODE, mode, TideOptions.WRITE_BUFFER_BYTES, "64KiB");
            var expected = new ByteArrayOutputStream();
            try (var stream = scene.create("/order", options)) {
                for (int round = 0; round < 300; round++) {
                    byte[] bytes = new byte[random.nextInt(1 << (round % 18))];
                    random.nextBytes(bytes);
                    stream.write(bytes);
                    stream.write(round);
                    expected.write(bytes);
                    expected.write(round);
                }
            }
            assertArrayEquals(expected.toByteArray(), scene.onPfs("/order"));
        }
    }

    @Test
    public void aWriteThatFoundNoMemorySpoilsItsStream() throws IOException {
        List<ByteBuffer> all = new ArrayList<>();
        TideOutputStream stream = scene.create("/spoiled",
                Map.of(TideOptions.WRITE_BUFFER_BYTES, "64MiB"));
        try {
            // More than a JVM of these tests has outside of its heap.
            assertThrows(OutOfMemoryError.class, () -> {
                while (true) {
                    all.add(ByteBuffer.allocateDirect(32 << 20));
                }
            });
            assertThrows(OutOfMemoryError.class, () -> stream.write(new byte[10]));
        } finally {
            all.clear();
        }
        // Those are the garbage collector's to free, and the next write would find memory.
        assertThrows(IOException.class, () -> stream.write(new byte[10]));
        assertThrows(IOException.class, stream::close);
    }

    @Test
    public void flushedBytesAreSeenByNewReaders() throws IOException {
        try (var stream = scene.create("/flushed", null)) {
            stream.write(new byte[] {1, 2, 3});
            assertEquals("still in the buffer", 0, scene.onPfs("/flushed").length);
            stream.hflush();
            assertArrayEquals(new byte[] {1, 2, 3}, scene.onPfs("/flushed"));
            try (var reader = scene.open("/flushed")) {
                assertEquals(3, reader.read(0, new byte[10], 0, 10));
            }
            stream.write(4);
            stream.hsync();
            try (var reader = scene.open("/flushed")) {
                assertEquals(4, reader.readAllBytes().length);
            }
            var counters = stream.getIOStatistics().counters();
            assertEquals(4, (long) counters.get("stream_write_bytes"));
            assertEquals(1, (long) counters.get("op_hsync"));
        }
    }

    /** As HDFS has it: a length by status may lag, an open reads what was flushed. */
    @Test
    public void flushedBytesInMemoryAreSeenByNewReadersHereAndElsewhere() throws IOException {
        var memory = Map.of(TideOptions.WRITE_MODE, "memory");
        var path = new org.apache.hadoop.fs.Path("/flushed-in-memory");
        var configuration = new org.apache.hadoop.conf.Configuration();
        scene.node.options().forEach(configuration::set);
        try (var elsewhere = org.apache.hadoop.fs.FileSystem.newInstance(
                java.net.URI.create("tide:///"), configuration)) {
            for (int seed : new int[] {1, 2}) {
                // The second time it is overwritten with less than it had.
                int length = 700_000 / seed;
                try (var stream = scene.create(path.toUri().getPath(), memory)) {
                    assertEquals("nothing is there yet", 0, elsewhere.getFileStatus(path).getLen());
                    stream.write(Scene.bytes(seed, 0, length));
                    stream.hflush();
                    assertTrue(elsewhere.getFileStatus(path).getLen() <= length);
                    assertReads(elsewhere, path, seed, length);
                    stream.write(Scene.bytes(seed, length, 9));
                    stream.hsync();
                    assertEquals(length + 9, elsewhere.getFileStatus(path).getLen());
                }
                assertReads(elsewhere, path, seed, length + 9);
            }
            try (var stream = scene.append(path.toUri().getPath())) {
                stream.write(Scene.bytes(2, 350_009, 1000));
                stream.hflush();
                assertReads(elsewhere, path, 2, 351_009);
            }
            assertEquals(351_009, elsewhere.getFileStatus(path).getLen());
        }
    }

    /** Whoever opens it now reads so many bytes, with a status that may be older or without. */
    private static void assertReads(org.apache.hadoop.fs.FileSystem system,
            org.apache.hadoop.fs.Path path, int seed, int length) throws IOException {
        byte[] expected = Scene.bytes(seed, 0, length);
        try (var stream = system.open(path)) {
            assertArrayEquals(expected, stream.readAllBytes());
        }
        var opened = system.openFile(path).withFileStatus(system.getFileStatus(path)).build();
        try (var stream = opened.join()) {
            byte[] last = new byte[5];
            stream.readFully(length - last.length, last);
            assertEquals(-1, Scene.difference(seed, length - last.length, last, last.length));
            assertEquals(-1, stream.read(length, last, 0, 1));
        }
    }

    @Test
    public void appendsGoBehindWhatIsThere() throws IOException {
        try (var stream = scene.create("/log", null)) {
            stream.write(new byte[] {1, 2});
        }
        try (var stream = scene.append("/log")) {
            stream.write(new byte[] {3, 4});
        }
        assertArrayEquals(new byte[] {1, 2, 3, 4}, scene.onPfs("/log"));
    }

    /** A file is seen as it is written, so nothing of it could be taken back. */
    @Test
    public void streamsDoNotClaimToBeAbortable() throws IOException {
        try (TideOutputStream stream = scene.create("/visible", null)) {
            assertFalse(stream.hasCapability(StreamCapabilities.ABORTABLE_STREAM));
            assertFalse((Object) stream instanceof org.apache.hadoop.fs.Abortable);
        }
    }

    @Test
    public void aClosedStreamSaysSo() throws IOException {
        TideOutputStream stream = scene.create("/closed", null);
        stream.close();
        stream.close();
        assertThrows(IOException.class, () -> stream.write(1));
        assertThrows(IOException.class, () -> stream.write(new byte[2]));
        assertThrows(IOException.class, stream::hflush);
        assertThrows(IOException.class, stream::hsync);
    }

    @Test
    public void whatWasGatheredIsHandedOverWhenTheFileSystemCloses() throws IOException {
        // As Hadoop does it at the end of a JVM, with streams that nobody closed.
        var configuration = new org.apache.hadoop.conf.Configuration();
        scene.node.options().forEach(configuration::set);
        var system = org.apache.hadoop.fs.FileSystem.newInstance(
                java.net.URI.create("tide:///"), configuration);
        FSDataOutputStream stream = system.create(new org.apache.hadoop.fs.Path("/open"));
        stream.write(Scene.bytes(6, 0, 1000));
        system.close();
        assertArrayEquals(Scene.bytes(6, 0, 1000), scene.onPfs("/open"));
        stream.write(Scene.bytes(6, 1000, 10));
        stream.close();
        assertArrayEquals(Scene.bytes(6, 0, 1010), scene.onPfs("/open"));
    }

    @Test
    public void capabilitiesAreTrue() throws IOException {
        try (var stream = new FSDataOutputStream(scene.create("/capable", null), null)) {
            assertTrue(stream.hasCapability("hflush"));
            assertTrue(stream.hasCapability(StreamCapabilities.HSYNC));
            assertTrue(stream.hasCapability(StreamCapabilities.DROPBEHIND));
            assertTrue(stream.hasCapability(StreamCapabilities.IOSTATISTICS));
            assertFalse(stream.hasCapability(StreamCapabilities.READBYTEBUFFER));
        }
        var memory = Map.of(TideOptions.WRITE_MODE, "memory");
        try (var stream = scene.create("/in-memory", memory)) {
            assertTrue(stream.hasCapability("hflush"));
            assertFalse("nothing is durable", stream.hasCapability(StreamCapabilities.HSYNC));
        }
    }

    @Test
    public void filesThatARulePutsInMemoryDoNotClaimToBeDurable() throws IOException {
        java.nio.file.Path rules = Files.createTempFile("tidepool-rules-", ".toml");
        Files.writeString(rules, "[[rule]]\npath = \"scratch\"\nwrite_mode = \"memory\"\n");
        try (var ruled = Scene.start("64MiB", "--config", rules.toString())) {
            Files.createDirectory(ruled.node.pfs().resolve("scratch"));
            TideOutputStream kept = ruled.create("/scratch/file", null);
            assertFalse("a rule of the node", kept.hasCapability(StreamCapabilities.HSYNC));
            assertTrue(kept.hasCapability("hflush"));
            assertFalse(kept.hasCapability(StreamCapabilities.DROPBEHIND));
            kept.close();
            assertFalse("after the close too", kept.hasCapability(StreamCapabilities.HSYNC));
            try (var stream = ruled.create("/file", null)) {
                assertTrue(stream.hasCapability(StreamCapabilities.HSYNC));
            }
        } finally {
            Files.delete(rules);
        }
        try (var bare = Scene.withoutNode();
                var stream = bare.create("/file", Map.of(TideOptions.WRITE_MODE, "memory"))) {
            assertTrue("the PFS has it", stream.hasCapability(StreamCapabilities.HSYNC));
        }
    }

    @Test
    public void anErrorOfThePfsReachesTheWriterAndStays() throws IOException {
        try (var full = Scene.start("64MiB", "--fault", "write:enospc-after=1MiB")) {
            TideOutputStream stream = full.create("/full", null);
            var error = assertThrows(IOException.class, () -> {
                stream.write(new byte[4 << 20]);
                stream.close();
            });
            assertTrue(error.toString(), error.getMessage().contains("No space left"));
            var again = assertThrows("whoever missed it", IOException.class, stream::close);
            assertTrue(again.toString(), again.getMessage().contains("No space left"));
            stream.close();
        }
    }

    @Test
    public void withoutNodeThePfsIsWritten() throws IOException {
        try (var bare = Scene.withoutNode()) {
            assertFalse(bare.client.isConnected());
            try (var stream = bare.create("/bare", null)) {
                stream.write(Scene.bytes(5, 0, 3 << 20));
            }
            assertArrayEquals(Scene.bytes(5, 0, 3 << 20), bare.onPfs("/bare"));
            try (var stream = bare.open("/bare")) {
                assertArrayEquals(Scene.bytes(5, 0, 3 << 20), stream.readAllBytes());
                var counters = stream.getIOStatistics().counters();
                assertEquals(3L << 20, (long) counters.get(ReadStatistics.BYTES_FROM + "pfs"));
            }
        }
    }
}
