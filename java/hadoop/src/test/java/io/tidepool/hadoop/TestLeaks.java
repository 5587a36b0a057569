/*
 * Nothing stays behind: after many opens, after streams that nobody closed, after interrupts, after
 * loans that nobody returned.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.lang.management.BufferPoolMXBean;
import java.lang.management.ManagementFactory;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.channels.ClosedByInterruptException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.EnumSet;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.FutureTask;
import java.util.concurrent.TimeUnit;
import java.util.stream.Stream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.PathIOException;
import org.apache.hadoop.fs.ReadOption;
import org.apache.hadoop.fs.statistics.IOStatisticsContext;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class TestLeaks {

    private static final int LENGTH = 5 << 20;
    private static final long SEED = 9;
    /** What else lives in the JVM may take this many more. */
    private static final int SLACK = 12;

    private Scene scene;

    @Before
    public void start() throws IOException {
        scene = Scene.start("128MiB");
        scene.make("/file", SEED, LENGTH);
        scene.make("/small", SEED, 4096);
        try (var stream = scene.open("/file")) {
            stream.readAllBytes();
        }
    }

    @After
    public void stop() throws IOException {
        scene.close();
    }

    /** What a process can run out of. */
    private record Held(int descriptors, int mappings, int threads, long directBytes) {

        static Held now() throws IOException {
            long direct = ManagementFactory.getPlatformMXBeans(BufferPoolMXBean.class).stream()
                    .filter(pool -> pool.getName().equals("direct"))
                    .mapToLong(BufferPoolMXBean::getMemoryUsed).sum();
            try (Stream<Path> descriptors = Files.list(Path.of("/proc/self/fd"));
                    Stream<Path> threads = Files.list(Path.of("/proc/self/task"));
                    Stream<String> mappings = Files.lines(Path.of("/proc/self/maps"))) {
                return new Held((int) descriptors.count(),
                        (int) mappings.filter(Held::isOurs).count(), (int) threads.count(),
                        direct);
            }
        }

        /** Mappings of segments and tables; the heap's and the code's come and go. */
        private static boolean isOurs(String line) {
            return line.contains("memfd:") || line.contains("tidepool") && line.contains("deleted");
        }

        boolean isNoMoreThan(Held before) {
            return descriptors <= before.descriptors + SLACK
                    && mappings <= before.mappings + SLACK
                    && threads <= before.threads + SLACK
                    && directBytes <= before.directBytes + (4 << 20);
        }
    }

    private static void assertNothingStays(Held before) throws Exception {
        Held now = Held.now();
        for (int round = 0; round < 100 && !now.isNoMoreThan(before); round++) {
            System.gc();
            Thread.sleep(50);
            now = Held.now();
        }
        assertTrue(before + " became " + now, now.isNoMoreThan(before));
    }

    private void useOnce(int round) throws Exception {
        try (var stream = scene.open(round % 3 == 0 ? "/small" : "/file")) {
            assertEquals(Scene.at(SEED, 0) & 0xff, stream.read());
            if (round % 5 == 0) {
                var range = FileRange.createFileRange(100, 3000);
                stream.readVectored(List.of(range), ByteBuffer::allocate);
                range.getData().get();
            }
            if (round % 3 == 1) {
                stream.releaseBuffer(
                        stream.read(null, 4096, EnumSet.noneOf(ReadOption.class)));
            }
        }
        if (round % 10 == 0) {
            try (var stream = scene.create("/made", null)) {
                stream.write(round);
            }
        }
    }

    /** YARN's log aggregation makes one an application, and nothing can close them. */
    @Test
    public void fileContextsThatAreDroppedLeaveNothing() throws Exception {
        var configuration = new org.apache.hadoop.conf.Configuration();
        scene.node.options().forEach(configuration::set);
        var root = java.net.URI.create("tide:///");
        configuration.set("fs.AbstractFileSystem.tide.impl", Tide.class.getName());
        Held before = Held.now();
        int clients = scene.node.clients();
        for (int round = 0; round < 2_000; round++) {
            configuration.set(TideOptions.SPLIT_BYTES, 1 + round % 5 + "MiB");
            var context = org.apache.hadoop.fs.FileContext.getFileContext(root, configuration);
            try (var in = context.open(new org.apache.hadoop.fs.Path("/small"))) {
                assertEquals(Scene.at(SEED, 0) & 0xff, in.read());
            }
        }
        int shared = scene.node.clients();
        assertTrue(shared + " clients", shared <= clients + 200);
        assertNothingStays(before);
        for (int round = 0; round < 100 && scene.node.clients() > clients; round++) {
            System.gc();
            Thread.sleep(50);
        }
        assertEquals(clients, scene.node.clients());
    }

    @Test
    public void tenThousandOpensLeaveNothing() throws Exception {
        for (int round = 0; round < 100; round++) {
            useOnce(round);
        }
        Held before = Held.now();
        for (int round = 0; round < 10_000; round++) {
            useOnce(round);
        }
        assertNothingStays(before);
        // A close is told to the node and not waited for.
        for (int round = 0; round < 100 && handlesOfTheNode() > 0; round++) {
            Thread.sleep(50);
        }
        assertEquals("the node holds no file for us", 0, handlesOfTheNode());
    }

    /** Descriptors of the PFS's files that the node still has for its clients. */
    private int handlesOfTheNode() throws IOException {
        int count = 0;
        Path descriptors = Path.of("/proc/" + scene.node.processId() + "/fd");
        try (Stream<Path> list = Files.list(descriptors)) {
            for (Path each : list.toList()) {
                try {
                    count += Files.readSymbolicLink(each).endsWith("pfs/small") ? 1 : 0;
                } catch (IOException closedMeanwhile) {
                    // It is not there any more, which is as well.
                }
            }
        }
        return count;
    }

    @Test
    public void droppedStreamsAreClosed() throws Exception {
        Held before = Held.now();
        for (int round = 0; round < 300; round++) {
            drop(round);
        }
        assertNothingStays(before);
    }

    /** Opens, lends and creates, and forgets it all. */
    private void drop(int round) throws IOException {
        TideInputStream stream = scene.open("/file");
        stream.read(null, 4096, EnumSet.noneOf(ReadOption.class)).get(0);
        scene.create("/dropped" + round % 3, null).write(1);
    }

    /** Ranges of a stream that nobody keeps. */
    private List<FileRange> dropWithRanges() throws IOException {
        TideInputStream stream = scene.open("/cold");
        List<FileRange> ranges = new ArrayList<>();
        for (int index = 0; index < 12; index++) {
            ranges.add(FileRange.createFileRange(index * (LENGTH / 12), 1000));
        }
        stream.readVectored(ranges, ByteBuffer::allocate);
        return ranges;
    }

    @Test
    public void rangesUnderWayKeepTheirStream() throws Exception {
        scene.make("/cold", SEED, LENGTH);
        scene.node.hang();
        List<FileRange> ranges = dropWithRanges();
        for (int round = 0; round < 10; round++) {
            System.gc();
            Thread.sleep(20);
        }
        scene.node.goOn();
        for (FileRange range : ranges) {
            ByteBuffer bytes = range.getData().get(60, TimeUnit.SECONDS);
            assertEquals(-1, Scene.difference(SEED, range.getOffset(), bytes));
        }
    }

    /** One thread reads byte by byte while another closes the stream and asks for ranges of it. */
    @Test
    public void whatComesAfterACloseDisturbsNoReader() throws Exception {
        List<FileRange> ranges = List.of(FileRange.createFileRange(0, 10));
        for (int round = 0; round < 1_000; round++) {
            TideInputStream stream = scene.open("/file");
            var reader = new FutureTask<Void>(() -> {
                for (long at = 0; ; at++) {
                    assertEquals(Scene.at(SEED, at) & 0xff, stream.read());
                }
            });
            new Thread(reader).start();
            while (stream.getPos() < round % 50) {
                Thread.onSpinWait();
            }
            stream.close();
            while (!reader.isDone()) {
                assertThrows(PathIOException.class,
                        () -> stream.readVectored(ranges, ByteBuffer::allocate));
            }
            var error = assertThrows(ExecutionException.class, reader::get);
            assertEquals(PathIOException.class, error.getCause().getClass());
        }
    }

    /** Where there is no heap for a stream once its file is open. */
    private static IOStatisticsContext full() {
        return (IOStatisticsContext) Proxy.newProxyInstance(
                TestLeaks.class.getClassLoader(), new Class<?>[] {IOStatisticsContext.class},
                (context, method, words) -> {
                    throw new OutOfMemoryError("as if the heap were full");
                });
    }

    @Test
    public void aStreamThatCannotBeMadeLeavesNothing() throws Exception {
        Held before = Held.now();
        IOStatisticsContext.setThreadIOStatisticsContext(full());
        try {
            for (int round = 0; round < 100; round++) {
                assertThrows(OutOfMemoryError.class, () -> Streams.open(
                        scene.client, "/small", null, null, null, null));
                assertThrows(OutOfMemoryError.class, () -> Streams.create(
                        scene.client, "/made", NativeFile.CREATE, 0644, null, null, null));
            }
        } finally {
            IOStatisticsContext.setThreadIOStatisticsContext(null);
        }
        assertNothingStays(before);
    }

    @Test
    public void anInterruptEndsAReadThatWouldWait() throws Exception {
        Held before = Held.now();
        for (int round = 0; round < 20; round++) {
            scene.make("/cold" + round, SEED, LENGTH);
            TideInputStream stream = scene.open("/cold" + round);
            Thread.currentThread().interrupt();
            byte[] bytes = new byte[4096];
            assertThrows(ClosedByInterruptException.class,
                    () -> stream.readFully(0, bytes, 0, bytes.length));
            assertTrue("the mark stays", Thread.interrupted());
            assertThrows(IOException.class, () -> stream.read(0, bytes, 0, 1));
            stream.close();
        }
        // Resident bytes do not wait, so they are read by whom ever.
        try (var stream = scene.open("/file")) {
            Thread.currentThread().interrupt();
            assertEquals(100, stream.read(0, new byte[100], 0, 100));
            assertTrue(Thread.interrupted());
        }
        assertNothingStays(before);
    }

    @Test
    public void loansOfClosedStreamsAreReadableAndGoWithTheirBuffers() throws Exception {
        Held before = Held.now();
        for (int round = 0; round < 50; round++) {
            ByteBuffer lent;
            try (var stream = scene.open("/file")) {
                lent = stream.read(null, 4096, EnumSet.noneOf(ReadOption.class));
            }
            assertEquals(-1, Scene.difference(SEED, 0, lent));
        }
        assertNothingStays(before);
    }

    @Test
    public void aStreamOutlivesItsClient() throws Exception {
        NativeClient client = NativeClient.connect(scene.node.options());
        NativeFile file = NativeFile.open(client, "/file", NativeFile.READ, 0, null);
        try (var stream = new TideInputStream(file, 4096, null, null)) {
            var first = FileRange.createFileRange(0, 10);
            stream.readVectored(List.of(first), ByteBuffer::allocate);
            client.close();
            scene.node.kill();
            assertEquals(Scene.at(SEED, 0) & 0xff, stream.read());
            var second = FileRange.createFileRange(LENGTH - 10, 10);
            stream.readVectored(List.of(second), ByteBuffer::allocate);
            assertEquals(-1, Scene.difference(SEED, LENGTH - 10, second.getData().get()));
        }
    }

    @Test
    public void clientsThatComeAndGoLeaveNothing() throws Exception {
        for (int round = 0; round < 5; round++) {
            NativeClient.connect(scene.node.options()).close();
        }
        Held before = Held.now();
        for (int round = 0; round < 200; round++) {
            try (var client = NativeClient.connect(scene.node.options())) {
                NativeFile.open(client, "/small", NativeFile.READ, 0, null).close();
            }
        }
        assertNothingStays(before);
    }
}
