/*
 * What a reader or writer says of itself is followed: how far to read ahead, what is worth keeping,
 * the options of openFile(). Every byte stays right. What the node holds is seen by reads of mode
 * `memory`, which fail where a byte is not there.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.EOFException;
import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FutureDataInputStreamBuilder;
import org.apache.hadoop.fs.Options.OpenFileOptions;
import org.apache.hadoop.fs.Path;
import org.junit.AfterClass;
import org.junit.BeforeClass;
import org.junit.Test;

public class TestHints {

    private static final long SEED = 21;
    private static final int BLOCK = 4 << 20;
    private static final int BLOCKS = 6;
    private static final int LENGTH = BLOCKS * BLOCK;
    private static final int STEP = 1 << 20;
    private static final long SETTLING_MS = 100;

    private static Scene scene;
    private static FileSystem system;
    private static int made;

    @BeforeClass
    public static void start() throws IOException {
        scene = Scene.start("512MiB");
        Configuration configuration = new Configuration();
        scene.node.options().forEach(configuration::set);
        system = FileSystem.newInstance(java.net.URI.create("tide:///"), configuration);
    }

    @AfterClass
    public static void stop() throws IOException {
        system.close();
        scene.close();
    }

    /** A file of which nothing is in memory. */
    private static String cold() throws Exception {
        String name = "/cold-" + made++;
        scene.make(name, SEED, LENGTH);
        settle();
        return name;
    }

    private static boolean isResident(String name, int block) throws IOException {
        var memory = Map.of(TideOptions.READ_MODE, "memory", TideOptions.READ_BUFFER_BYTES, "0");
        try (var stream = scene.open(name, memory, null)) {
            return stream.read((long) block * BLOCK, new byte[1], 0, 1) == 1;
        } catch (IOException error) {
            assertTrue(error.toString(), error.getMessage().contains("not in the store"));
            return false;
        }
    }

    private static void awaitResident(String name, int block) throws Exception {
        long end = System.nanoTime() + 60_000_000_000L;
        while (!isResident(name, block)) {
            assertTrue("block " + block + " never comes", System.nanoTime() < end);
            Thread.sleep(10);
        }
    }

    /** Reads the first bytes in order, and waits until the node has heard all that was told. */
    private static void readInOrder(TideInputStream stream, int from, int length)
            throws IOException {
        byte[] bytes = new byte[STEP];
        for (int done = 0; done < length; done += STEP) {
            stream.readFully(from + done, bytes, 0, STEP);
            assertEquals(-1, Scene.difference(SEED, from + done, bytes, STEP));
        }
        // Asks the node, which answers after all that it was told before.
        assertThrows(EOFException.class, () -> stream.seek(LENGTH + 1L));
    }

    @Test
    public void readAheadIsAsFarAsTheReaderSays() throws Exception {
        String name = cold();
        try (var stream = scene.open(name)) {
            readInOrder(stream, 0, 2 * STEP);
            awaitResident(name, 1);
        }
        name = cold();
        try (var stream = scene.open(name)) {
            stream.setReadahead(0L);
            readInOrder(stream, 0, BLOCK);
            assertTrue(isResident(name, 0));
            assertNothingMoreComes(name, 1);
            stream.setReadahead(null);
            readInOrder(stream, BLOCK, 2 * STEP);
            awaitResident(name, 2);
            assertThrows(IllegalArgumentException.class, () -> stream.setReadahead(-1L));
        }
    }

    /** What was asked for ahead of a file before would be there after another one's. */
    private static void assertNothingMoreComes(String name, int block) throws Exception {
        String other = cold();
        try (var stream = scene.open(other)) {
            readInOrder(stream, 0, 2 * STEP);
            awaitResident(other, 1);
        }
        assertFalse("block " + block, isResident(name, block));
    }

    @Test
    public void whatAReaderDropsBehindIsNotKept() throws Exception {
        String name = cold();
        try (var stream = scene.open(name)) {
            stream.setDropBehind(true);
            readInOrder(stream, 0, LENGTH);
            for (int block = 0; block < BLOCKS; block++) {
                assertFalse("block " + block, isResident(name, block));
            }
            stream.setDropBehind(false);
            readInOrder(stream, 0, BLOCK);
            assertTrue(isResident(name, 0));
            stream.setDropBehind(true);
            readInOrder(stream, 0, BLOCK);
            assertTrue("what was there stays", isResident(name, 0));
        }
    }

    @Test
    public void whatAWriterDropsBehindIsNotKept() throws Exception {
        write("/dropped", true);
        write("/kept", false);
        awaitResident("/kept", BLOCKS - 1);
        for (int block = 0; block < BLOCKS; block++) {
            assertFalse("block " + block, isResident("/dropped", block));
        }
    }

    private static void write(String name, boolean drop) throws Exception {
        try (var stream = scene.create(name, null)) {
            stream.setDropBehind(drop);
            stream.write(Scene.bytes(SEED, 0, LENGTH));
            stream.hflush();
            settle();
        }
        var written = java.nio.ByteBuffer.wrap(scene.onPfs(name));
        assertEquals(LENGTH, written.remaining());
        assertEquals(-1, Scene.difference(SEED, 0, written));
    }

    /** Lets the clock of the PFS go past the last change: what it could hide is not trusted. */
    private static void settle() throws InterruptedException {
        Thread.sleep(SETTLING_MS);
    }

    private static TideInputStream open(FutureDataInputStreamBuilder builder) throws Exception {
        FSDataInputStream stream = builder.build().get();
        return (TideInputStream) stream.getWrappedStream();
    }

    private static FutureDataInputStreamBuilder opening(String name, String policy)
            throws IOException {
        return system.openFile(new Path(name))
                .must(OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICY, policy);
    }

    @Test
    public void policiesDecideWhatIsReadAhead() throws Exception {
        for (String policy : OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICIES) {
            try (var stream = open(opening(cold(), policy))) {
                readInOrder(stream, 0, LENGTH);
            }
        }
        String random = cold();
        try (var stream = open(opening(random, "fancy, parquet, sequential"))) {
            readInOrder(stream, 0, BLOCK);
            assertNothingMoreComes(random, 1);
        }
        String whole = cold();
        try (var stream = open(opening(whole, "whole-file"))) {
            awaitResident(whole, BLOCKS - 1);
            assertEquals(Scene.at(SEED, 0) & 0xff, stream.read());
        }
        String sequential = cold();
        try (var stream = open(opening(sequential, "sequential"))) {
            stream.readFully(0, new byte[10], 0, 10);
            awaitResident(sequential, 1);
        }
    }

    @Test
    public void nothingIsReadAheadBeyondASplit() throws Exception {
        String name = cold();
        var builder = opening(name, "sequential")
                .must(OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_START, String.valueOf(BLOCK))
                .must(OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_END, String.valueOf(3 * BLOCK));
        try (var stream = open(builder)) {
            stream.readFully(BLOCK, new byte[10], 0, 10);
            awaitResident(name, 2);
            readInOrder(stream, BLOCK, 2 * BLOCK);
            assertNothingMoreComes(name, 3);
            readInOrder(stream, 3 * BLOCK, BLOCK);
        }
    }

    @Test
    public void otherOptionsAreTakenWhateverTheySay() throws Exception {
        String name = cold();
        FileStatus status = system.getFileStatus(new Path(name));
        Map<String, String> options = new HashMap<>();
        options.put(OpenFileOptions.FS_OPTION_OPENFILE_LENGTH, "17");
        options.put(OpenFileOptions.FS_OPTION_OPENFILE_FOOTER_CACHE, "true");
        options.put(OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_START, "many");
        options.put(OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_END, "-5");
        options.put(OpenFileOptions.FS_OPTION_OPENFILE_BUFFER_SIZE, "100000");
        FutureDataInputStreamBuilder builder = system.openFile(new Path(name));
        options.forEach(builder::opt);
        var elsewhere = new FileStatus(status);
        elsewhere.setPath(new Path("viewfs://somewhere/else" + name));
        try (var stream = open(builder.withFileStatus(elsewhere))) {
            assertEquals("a length saves nothing and hides nothing", LENGTH, stream.available());
            readInOrder(stream, 0, LENGTH);
        }
        open(system.openFile(new Path(name)).withFileStatus(null)).close();
        assertThrows(IllegalArgumentException.class,
                () -> system.openFile(new Path("/other")).withFileStatus(status).build());
        var missing = system.openFile(new Path("/missing")).build();
        assertThrows(ExecutionException.class, missing::get);
    }

    @Test
    public void theBufferHasTheSizeThatIsAskedFor() throws Exception {
        String name = cold();
        var builder = system.openFile(new Path(name))
                .must(OpenFileOptions.FS_OPTION_OPENFILE_BUFFER_SIZE, 0);
        try (var stream = open(builder)) {
            stream.read();
            assertEquals("no buffer", 0, stream.bufferBytesMax());
        }
        builder = system.openFile(new Path(name))
                .must(OpenFileOptions.FS_OPTION_OPENFILE_BUFFER_SIZE, 5000)
                .must(TideOptions.READ_BUFFER_BYTES, "6000");
        try (var stream = open(builder)) {
            assertEquals("ours goes before", 6000, stream.bufferBytesMax());
        }
    }

    @Test
    public void handlesTakeOptionsToo() throws Exception {
        String name = cold();
        var handle = system.getPathHandle(system.getFileStatus(new Path(name)));
        var builder = system.openFile(handle)
                .must(OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICY, "whole-file");
        try (var stream = open(builder)) {
            awaitResident(name, BLOCKS - 1);
            assertEquals(LENGTH, stream.available());
        }
        assertThrows(IllegalArgumentException.class,
                () -> system.openFile(handle).must("fs.stranger.option", "x").build());
    }
}
