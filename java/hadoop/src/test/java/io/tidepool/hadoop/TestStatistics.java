/*
 * What can be asked of a file system about what it did: bytes by level of all its streams, times and
 * failures of its operations, and the bytes of a task where another thread waited for them.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.statistics.IOStatistics;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class TestStatistics {

    private static final int LENGTH = 9 << 20;

    private Scene scene;
    private TideFileSystem system;

    @Before
    public void start() throws IOException {
        scene = Scene.start("64MiB");
        scene.make("/file", 3, LENGTH);
        Configuration configuration = new Configuration();
        scene.node.options().forEach(configuration::set);
        system = (TideFileSystem) FileSystem.newInstance(URI.create("tide:///"), configuration);
    }

    @After
    public void stop() throws IOException {
        system.close();
        scene.close();
    }

    private long count(String name) {
        return system.getIOStatistics().counters().get(name);
    }

    private void readAll() throws IOException {
        try (FSDataInputStream in = system.open(new Path("/file"))) {
            assertEquals(LENGTH, in.readAllBytes().length);
        }
    }

    @Test
    public void aFileSystemTellsTheHitRatioOfItsStreams() throws IOException {
        readAll();
        long cold = count(ReadStatistics.BYTES_FROM + "pfs");
        assertTrue("from the PFS at first", cold > 0);
        readAll();
        readAll();
        assertEquals(3L * LENGTH, count("stream_read_bytes"));
        assertEquals("nothing more of it", cold, count(ReadStatistics.BYTES_FROM + "pfs"));
        long memory = 0;
        for (String level : List.of("mapped", "store", "peer", "buffer")) {
            memory += count(ReadStatistics.BYTES_FROM + level);
        }
        assertEquals("all bytes have a level", 3L * LENGTH, memory + cold);
        try (FSDataOutputStream out = system.create(new Path("/made"))) {
            out.write(new byte[1000]);
        }
        assertEquals(1000, count("stream_write_bytes"));
        assertEquals(3L * LENGTH, (long) system.getStorageStatistics().getLong(
                "stream_read_bytes"));
    }

    @Test
    public void operationsTellTheirTimesAndFailures() throws IOException {
        readAll();
        assertThrows(FileNotFoundException.class, () -> system.open(new Path("/missing")));
        assertEquals(2, count("op_open"));
        assertEquals(1, count("op_open.failures"));
        IOStatistics all = system.getIOStatistics();
        assertEquals(1, all.meanStatistics().get("op_open.mean").getSamples());
        assertTrue(all.maximums().get("op_open.max") >= all.minimums().get("op_open.min"));
        assertTrue(system.toString(), system.toString().contains("op_open.failures"));
    }

    @Test
    @SuppressWarnings("deprecation")
    public void rangesThatHadToWaitAreBytesOfTheThreadThatAsked() throws Exception {
        List<FileRange> ranges = new ArrayList<>();
        for (int index = 0; index < 9; index++) {
            ranges.add(FileRange.createFileRange(index << 20, 1 << 20));
        }
        // Of all file systems of the process, as Hadoop keeps them, by thread.
        FileSystem.Statistics mine = FileSystem.getStatistics("tide", TideFileSystem.class);
        long before = mine.getThreadStatistics().getBytesRead();
        try (FSDataInputStream in = system.open(new Path("/file"))) {
            in.readVectored(ranges, ByteBuffer::allocate);
            for (FileRange range : ranges) {
                range.getData().get();
            }
        }
        assertEquals(LENGTH, mine.getThreadStatistics().getBytesRead() - before);
        assertEquals(LENGTH, count("stream_read_bytes"));
    }
}
