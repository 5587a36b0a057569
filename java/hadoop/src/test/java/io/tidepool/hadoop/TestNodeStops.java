/*
 * A node that is stopped under streams that are open already: what is resident is read to its end
 * in every way, no wait outlasts an interrupt or a close, and no stream holds up another one.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.util.ArrayList;
import java.util.Collections;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.io.ElasticByteBufferPool;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class TestNodeStops {

    private static final int LENGTH = 8 << 20;
    /** Ends in the middle of a block. */
    private static final int ODD_LENGTH = LENGTH + 5;
    private static final int COLD_LENGTH = 64 << 20;
    /** Far below the 600 s after which a request without an answer fails. */
    private static final long ENDS_WITHIN_S = 60;

    private final ExecutorService threads = Executors.newCachedThreadPool();
    private Scene scene;

    @Before
    public void start() throws IOException {
        scene = Scene.start("256MiB");
        scene.make("/even", 1, LENGTH);
        scene.make("/odd", 2, ODD_LENGTH);
        scene.make("/cold", 3, COLD_LENGTH);
        for (String warm : new String[] {"/even", "/odd"}) {
            try (var stream = scene.open(warm)) {
                stream.readAllBytes();
            }
        }
    }

    @After
    public void stop() throws IOException {
        scene.node.goOn();
        threads.shutdownNow();
        scene.close();
    }

    /** What a call comes to that must not wait for the node. */
    private <T> T atOnce(Callable<T> call) throws Exception {
        return threads.submit(call).get(ENDS_WITHIN_S, TimeUnit.SECONDS);
    }

    @Test
    public void residentFilesAreReadToTheirEnd() throws Exception {
        try (var even = scene.open("/even"); var odd = scene.open("/odd")) {
            scene.node.hang();
            assertArrayEquals(Scene.bytes(1, 0, LENGTH), atOnce(even::readAllBytes));
            assertArrayEquals(Scene.bytes(2, 0, ODD_LENGTH), atOnce(odd::readAllBytes));
            for (int past : new int[] {0, 1, 5 << 20}) {
                assertEquals(-1, (int) atOnce(
                        () -> odd.read(ODD_LENGTH + past, new byte[10], 0, 10)));
            }
        }
    }

    @Test
    public void theEndOfAResidentFileMovesWithItsWriters() throws Exception {
        try (var stream = scene.open("/odd")) {
            assertEquals(ODD_LENGTH, stream.readAllBytes().length);
            assertEquals(-1, stream.read());
            int flags = NativeFile.WRITE | NativeFile.APPEND;
            var through = Map.of(TideOptions.WRITE_MODE, "through");
            try (var writer = NativeFile.open(scene.client, "/odd", flags, 0, through)) {
                byte[] bytes = Scene.bytes(2, ODD_LENGTH, 100);
                writer.write(0, ByteBuffer.allocateDirect(bytes.length).put(bytes).flip());
                assertArrayEquals(Scene.bytes(2, ODD_LENGTH, 100), stream.readAllBytes());
            }
        }
    }

    @Test
    public void placesPastTheEndOfAResidentFileAreKnown() throws Exception {
        try (var stream = scene.open("/odd")) {
            scene.node.hang();
            Exception error = assertThrows(ExecutionException.class, () -> atOnce(() -> {
                stream.seek(ODD_LENGTH + 1);
                return null;
            }));
            assertTrue(error.toString(), error.getCause() instanceof EOFException);
            assertEquals(5, (long) atOnce(() -> {
                stream.seek(LENGTH);
                return stream.skip(100);
            }));
        }
    }

    @Test
    public void residentBytesAreReadWithoutACopyOrWithOne() throws Exception {
        try (var stream = scene.open("/even")) {
            scene.node.hang();
            for (int round = 0; round < 10; round++) {
                int at = 300_000 * round;
                assertEquals(-1, (int) atOnce(() -> {
                    stream.seek(at);
                    ByteBuffer bytes = stream.read(new ElasticByteBufferPool(), 100_000,
                            EnumSet.of(ReadOption.SKIP_CHECKSUMS));
                    assertEquals(100_000, bytes.remaining());
                    int difference = Scene.difference(1, at, bytes);
                    stream.releaseBuffer(bytes);
                    return difference;
                }));
            }
        }
    }

    private interface Wait {
        void begin(TideInputStream stream) throws IOException;
    }

    /** A call that waits for the node ends when its thread is interrupted, and by a close. */
    private void assertEnds(Wait wait) throws Exception {
        List<TideInputStream> streams = List.of(scene.open("/cold"), scene.open("/cold"));
        List<Thread> waiting = Collections.synchronizedList(new ArrayList<>());
        List<Future<Void>> calls = new ArrayList<>();
        scene.node.hang();
        for (TideInputStream stream : streams) {
            calls.add(threads.submit(() -> {
                waiting.add(Thread.currentThread());
                wait.begin(stream);
                return null;
            }));
            while (waiting.size() < calls.size()) {
                Thread.sleep(1);
            }
        }
        Thread.sleep(500);
        for (Future<Void> call : calls) {
            assertFalse("it waits for the node", call.isDone());
        }
        waiting.get(0).interrupt();
        streams.get(1).close();
        Throwable interrupted = cause(calls.get(0));
        assertTrue(interrupted.toString(), interrupted instanceof ClosedByInterruptException);
        Throwable closed = cause(calls.get(1));
        assertTrue(closed.toString(), closed.getMessage().contains("Stream is closed!"));
        assertThrows("the interrupt closed it", IOException.class, streams.get(0)::read);
        scene.node.goOn();
    }

    private static Throwable cause(Future<Void> call) {
        return assertThrows(ExecutionException.class,
                () -> call.get(ENDS_WITHIN_S, TimeUnit.SECONDS)).getCause();
    }

    @Test
    public void aWaitForTheLengthEnds() throws Exception {
        assertEnds(stream -> stream.seek(COLD_LENGTH + 1));
    }

    @Test
    public void aWaitForBytesToSkipEnds() throws Exception {
        assertEnds(stream -> {
            stream.seek(COLD_LENGTH);
            stream.skip(1);
        });
    }

    @Test
    public void aWaitForALoanEnds() throws Exception {
        assertEnds(stream -> stream.read(new ElasticByteBufferPool(), 100_000,
                EnumSet.of(ReadOption.SKIP_CHECKSUMS)));
    }

    private static List<FileRange> ranges(int count, long first, int step) {
        List<FileRange> ranges = new ArrayList<>();
        for (int index = 0; index < count; index++) {
            ranges.add(FileRange.createFileRange(first + (long) index * step, 50_000));
        }
        return ranges;
    }

    @Test
    public void vectoredReadsThatWaitHoldUpNoOtherStream() throws Exception {
        scene.make("/other", 4, LENGTH);
        List<TideInputStream> waiting = new ArrayList<>();
        for (int count = 0; count < 6; count++) {
            waiting.add(scene.open("/cold"));
        }
        scene.node.hang();
        for (TideInputStream stream : waiting) {
            stream.readVectored(ranges(12, 20 << 20, 3 << 20), ByteBuffer::allocate);
        }
        try (var stream = scene.open("/other")) {
            List<FileRange> ranges = ranges(20, 0, 100_000);
            stream.readVectored(ranges, ByteBuffer::allocate);
            for (FileRange range : ranges) {
                ByteBuffer bytes = range.getData().get(ENDS_WITHIN_S, TimeUnit.SECONDS);
                assertEquals(-1, Scene.difference(4, range.getOffset(), bytes));
            }
        }
        for (TideInputStream stream : waiting) {
            stream.close();
        }
    }

    @Test
    public void theEndOfAJvmDoesNotWaitForWritersForLong() throws Exception {
        TideOutputStream stream = scene.append("/even");
        stream.write(Scene.bytes(1, LENGTH, 1000));
        scene.node.hang();
        atOnce(() -> {
            scene.client.flushWriters(100);
            return null;
        });
        scene.node.goOn();
        stream.close();
        assertArrayEquals(Scene.bytes(1, 0, LENGTH + 1000), scene.onPfs("/even"));
    }
}
