/*
 * Every way to read a stream gives the bytes of the file: at the cursor with and without buffer, at
 * positions, into arrays and buffers, in ranges, without a copy, by many threads.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertNotNull;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.hadoop.io.ElasticByteBufferPool;
import org.junit.AfterClass;
import org.junit.BeforeClass;
import org.junit.Test;

public class TestTideInputStream {

    private static final int LENGTH = (9 << 20) + 4321;
    private static final long SEED = 77;
    private static final String FILE = "/file";

    private static Scene scene;

    @BeforeClass
    public static void start() throws IOException {
        scene = Scene.start("128MiB");
        scene.make(FILE, SEED, LENGTH);
        scene.make("/small", SEED, 5000);
        scene.make("/empty", SEED, 0);
    }

    @AfterClass
    public static void stop() throws IOException {
        scene.close();
    }

    private static void same(long offset, byte[] bytes, int length) {
        assertEquals("at " + offset, -1, Scene.difference(SEED, offset, bytes, length));
    }

    @Test
    public void buffersAreReleasedWhereTheAllocatorGivesNoMore() throws Exception {
        List<ByteBuffer> given = new ArrayList<>();
        List<ByteBuffer> released = new ArrayList<>();
        List<FileRange> ranges = List.of(FileRange.createFileRange(0, 10),
                FileRange.createFileRange(20, 10), FileRange.createFileRange(40, 10));
        scene.make("/ranges", 1, 100);
        try (var stream = scene.open("/ranges")) {
            assertThrows(IllegalStateException.class, () -> stream.readVectored(ranges, length -> {
                if (given.size() == 2) {
                    throw new IllegalStateException("no more");
                }
                given.add(ByteBuffer.allocate(length));
                return given.get(given.size() - 1);
            }, released::add));
        }
        assertEquals(2, given.size());
        assertEquals(given, released);
    }

    @Test
    public void theCursorReadsEveryByteWhateverTheSteps() throws IOException {
        for (String buffer : new String[] {"0", "4096", "64KiB"}) {
            var options = Map.of(TideOptions.READ_BUFFER_BYTES, buffer);
            for (int step : new int[] {1, 7, 4096, 70_000, 3 << 20}) {
                int length = step == 1 ? 5000 : LENGTH;
                try (var stream = scene.open(length == LENGTH ? FILE : "/small", options, null)) {
                    byte[] bytes = new byte[step];
                    int done = 0;
                    for (int count; (count = stream.read(bytes)) >= 0; done += count) {
                        same(done, bytes, count);
                        assertEquals(done + count, stream.getPos());
                    }
                    assertEquals(length, done);
                    assertEquals(-1, stream.read());
                }
            }
        }
    }

    @Test
    public void singleBytesAreUnsignedAndSeeksGoAnywhere() throws IOException {
        Random random = new Random(1);
        try (var stream = scene.open(FILE)) {
            for (int round = 0; round < 2000; round++) {
                int at = round % 3 == 0 ? random.nextInt(LENGTH) : (int) stream.getPos() % LENGTH;
                stream.seek(at);
                assertEquals(Scene.at(SEED, at) & 0xff, stream.read());
                if (round % 5 == 0) {
                    stream.unbuffer();
                }
            }
            stream.seek(LENGTH);
            assertEquals(-1, stream.read());
            assertThrows(EOFException.class, () -> stream.seek(LENGTH + 1L));
            assertThrows(EOFException.class, () -> stream.seek(-1));
            stream.seek(10);
            assertEquals(20, stream.skip(20));
            assertEquals(30, stream.getPos());
            assertEquals(LENGTH - 30, stream.available());
            assertEquals(LENGTH - 30, stream.skip(Long.MAX_VALUE - 30));
        }
    }

    @Test
    public void positionedReadsLeaveTheCursor() throws IOException {
        Random random = new Random(2);
        ByteBuffer direct = ByteBuffer.allocateDirect(2 << 20);
        ByteBuffer heap = ByteBuffer.allocate(2 << 20);
        byte[] array = new byte[2 << 20];
        try (var stream = scene.open(FILE)) {
            stream.seek(99);
            for (int round = 0; round < 200; round++) {
                int length = 1 + random.nextInt(1 << (round % 21));
                int at = random.nextInt(LENGTH - length);
                stream.readFully(at, array, round, length);
                ByteBuffer inArray = ByteBuffer.wrap(array, round, length);
                assertEquals(-1, Scene.difference(SEED, at, inArray));
                for (ByteBuffer buffer : List.of(direct, heap)) {
                    buffer.clear().position(round).limit(round + length);
                    stream.readFully(at, buffer);
                    assertEquals(0, buffer.remaining());
                    assertEquals(-1, Scene.difference(SEED, at, buffer.position(round)));
                }
            }
            assertEquals(99, stream.getPos());
            assertEquals(-1, stream.read(LENGTH, array, 0, 1));
            assertEquals(-1, stream.read(LENGTH + 10L, direct.clear()));
            assertEquals(0, stream.read(0, array, 0, 0));
            assertThrows(EOFException.class, () -> stream.read(-1, array, 0, 1));
            assertThrows(EOFException.class, () -> stream.readFully(LENGTH - 1, array, 0, 2));
            assertThrows(EOFException.class,
                    () -> stream.readFully(LENGTH - 1, direct.clear().limit(2)));
            assertThrows(IndexOutOfBoundsException.class, () -> stream.read(0, array, -1, 4));
            assertThrows(IndexOutOfBoundsException.class,
                    () -> stream.read(0, array, array.length, 1));
            assertThrows(IllegalArgumentException.class,
                    () -> stream.read(0, ByteBuffer.allocateDirect(8).asReadOnlyBuffer()));
        }
    }

    @Test
    public void rangesComeIntoTheBuffersOfTheCaller() throws Exception {
        var pool = new ElasticByteBufferPool();
        for (boolean isDirect : new boolean[] {true, false}) {
            // In no order, over each other, empty, and over the border of a block.
            List<FileRange> ranges = new ArrayList<>();
            ranges.add(FileRange.createFileRange(5 << 20, 100_000));
            ranges.add(FileRange.createFileRange(0, 10));
            ranges.add(FileRange.createFileRange(5, 0));
            ranges.add(FileRange.createFileRange((4 << 20) - 7, 20));
            ranges.add(FileRange.createFileRange(5, 300_000));
            try (var stream = scene.open(FILE)) {
                stream.readVectored(ranges, size -> pool.getBuffer(isDirect, size), b -> { });
                for (FileRange range : ranges) {
                    ByteBuffer data = range.getData().get();
                    assertEquals(range.getLength(), data.remaining());
                    assertEquals(-1, Scene.difference(SEED, range.getOffset(), data));
                }
                var beyond = FileRange.createFileRange(LENGTH - 10, 20);
                int[] released = new int[1];
                stream.readVectored(List.of(beyond), ByteBuffer::allocate, b -> released[0]++);
                var error = assertThrows(ExecutionException.class, () -> beyond.getData().get());
                assertTrue(error.getCause() instanceof EOFException);
                assertEquals(1, released[0]);
                stream.readVectored(List.of(), ByteBuffer::allocate);
            }
        }
    }

    @Test
    public void lentBytesAreTheNodesAndReadOnly() throws IOException {
        var pool = new ElasticByteBufferPool();
        var options = EnumSet.noneOf(ReadOption.class);
        try (var stream = scene.open(FILE)) {
            stream.seek(1234);
            ByteBuffer lent = stream.read(null, 1 << 20, options);
            assertNotNull(lent);
            assertTrue(lent.isDirect() && lent.isReadOnly() && lent.hasRemaining());
            assertEquals(1234 + lent.remaining(), stream.getPos());
            assertEquals(-1, Scene.difference(SEED, 1234, lent));
            ByteBuffer view = lent.slice();
            stream.releaseBuffer(lent);
            // A late look is no crash.
            view.get(0);
            assertThrows(IllegalArgumentException.class, () -> stream.releaseBuffer(lent));
            assertEquals(0, stream.read(pool, 0, options).remaining());
            stream.seek(LENGTH);
            assertNull(stream.read(pool, 10, options));
        }
        // Packed files are never handed out.
        try (var stream = scene.open("/small")) {
            assertThrows(UnsupportedOperationException.class,
                    () -> stream.read(null, 10, options));
            ByteBuffer copied = stream.read(pool, 10, options);
            assertEquals(-1, Scene.difference(SEED, 0, copied));
            assertEquals(10, stream.getPos());
            stream.releaseBuffer(copied);
        }
    }

    @Test
    public void statisticsCountBytesAndTheirLevels() throws IOException {
        var whole = new FileSystem.Statistics("tide");
        try (var stream = scene.open(FILE, null, whole)) {
            byte[] bytes = new byte[1 << 20];
            for (int round = 0; round < 4; round++) {
                stream.readFully(0, bytes, 0, bytes.length);
            }
            var counters = stream.getIOStatistics().counters();
            long total = counters.get("stream_read_bytes");
            assertEquals(4L << 20, total);
            assertEquals(total, whole.getBytesRead());
            long byLevel = 0;
            for (String level : List.of("mapped", "store", "peer", "buffer", "pfs")) {
                byLevel += counters.get(ReadStatistics.BYTES_FROM + level);
            }
            assertEquals("every byte has a level", total, byLevel);
            assertTrue(counters.get(ReadStatistics.BYTES_FROM + "mapped") >= 3L << 20);
        }
    }

    @Test
    public void capabilitiesAreTrue() throws IOException {
        try (var stream = new FSDataInputStream(scene.open(FILE))) {
            for (String name : List.of(
                    StreamCapabilities.READBYTEBUFFER, StreamCapabilities.PREADBYTEBUFFER,
                    StreamCapabilities.UNBUFFER, StreamCapabilities.VECTOREDIO,
                    StreamCapabilities.READAHEAD, StreamCapabilities.DROPBEHIND,
                    StreamCapabilities.IOSTATISTICS)) {
                assertTrue(name, stream.hasCapability(name));
            }
            assertFalse(stream.hasCapability(StreamCapabilities.HSYNC));
            assertFalse(stream.hasCapability("in:nothing"));
        }
    }

    @Test
    public void aClosedStreamSaysSo() throws IOException {
        TideInputStream stream = scene.open(FILE);
        stream.close();
        stream.close();
        assertThrows(IOException.class, stream::read);
        assertThrows(IOException.class, () -> stream.seek(0));
        assertThrows(IOException.class, stream::available);
        assertThrows(IOException.class, () -> stream.read(0, new byte[1], 0, 1));
        assertThrows(IOException.class, () -> stream.read(0, ByteBuffer.allocateDirect(1)));
        var ranges = List.of(FileRange.createFileRange(0, 10));
        assertThrows(IOException.class,
                () -> stream.readVectored(ranges, ByteBuffer::allocateDirect));
        stream.unbuffer();
        stream.getIOStatistics();
    }

    @Test
    public void anEmptyFileEndsAtOnce() throws IOException {
        try (var stream = scene.open("/empty")) {
            assertEquals(-1, stream.read());
            assertEquals(-1, stream.read(new byte[10]));
            assertEquals(-1, stream.read(ByteBuffer.allocateDirect(10)));
            assertEquals(0, stream.available());
        }
    }

    /** Threads read at positions and at the cursor while others open, close and lend. */
    @Test
    public void manyThreadsShareStreamsThatCloseUnderThem() throws Exception {
        int threads = 8;
        var executor = Executors.newFixedThreadPool(threads);
        try {
            for (int round = 0; round < 30; round++) {
                TideInputStream stream = scene.open(FILE);
                List<Callable<Void>> works = new ArrayList<>();
                for (int thread = 0; thread < threads - 1; thread++) {
                    long seed = 100L * round + thread;
                    works.add(() -> readUntilClosed(stream, seed));
                }
                works.add(() -> {
                    Thread.sleep(5);
                    stream.close();
                    return null;
                });
                for (Future<Void> future : executor.invokeAll(works)) {
                    future.get();
                }
            }
        } finally {
            executor.shutdown();
        }
    }

    private static Void readUntilClosed(TideInputStream stream, long seed) throws IOException {
        Random random = new Random(seed);
        ByteBuffer direct = ByteBuffer.allocateDirect(200_000);
        byte[] array = new byte[200_000];
        for (int round = 0; round < 100_000; round++) {
            int length = 1 + random.nextInt(array.length - 1);
            int at = random.nextInt(LENGTH - length);
            try {
                switch (round % 4) {
                    case 0 -> {
                        stream.readFully(at, array, 0, length);
                        same(at, array, Math.min(length, 500));
                    }
                    case 1 -> {
                        stream.readFully(at, direct.clear().limit(length));
                        direct.position(Math.max(0, length - 500));
                        assertEquals(
                                -1, Scene.difference(SEED, at + direct.position(), direct));
                    }
                    case 2 -> {
                        ByteBuffer lent =
                                stream.read(null, 1000, EnumSet.noneOf(ReadOption.class));
                        stream.releaseBuffer(lent);
                    }
                    default -> stream.seek(at);
                }
            } catch (UnsupportedOperationException nothingLent) {
                // The quota of lent bytes is reached now and then.
            } catch (IOException error) {
                assertTrue(error.toString(), error.getMessage().contains("closed"));
                return null;
            }
        }
        return null;
    }

    @Test
    public void aStreamOfAnotherLengthIsWholeToo() throws IOException {
        try (var stream = scene.open("/small")) {
            byte[] all = stream.readAllBytes();
            assertArrayEquals(Scene.bytes(SEED, 0, 5000), all);
        }
    }
}
