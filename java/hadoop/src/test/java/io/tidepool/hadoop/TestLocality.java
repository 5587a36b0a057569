/*
 * Where blocks are, on two real nodes of one cluster: on those that hold them, or each on the one
 * that is to read it, whichever node is asked and whether files are asked about alone or as a list.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.io.RandomAccessFile;
import java.net.URI;
import java.nio.file.Files;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.concurrent.TimeUnit;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BlockLocation;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class TestLocality {

    private static final int BLOCK = 4 << 20;
    private static final int BLOCKS = 200;
    private static final long PATIENCE_S = 60;
    private static final Path SPARSE = new Path("/sparse");

    private List<TestNode> nodes;
    private final List<FileSystem> systems = new ArrayList<>();

    @Before
    public void start() throws Exception {
        nodes = TestNode.cluster(2, "64MiB");
        for (TestNode node : nodes) {
            systems.add(FileSystem.newInstance(URI.create("tide:///"), configuration(node)));
        }
        sparse("sparse", (long) BLOCKS * BLOCK);
        for (FileSystem system : systems) {
            until("both nodes are owners", () -> hostsOfAll(system, SPARSE).size() == 2);
        }
    }

    @After
    public void stop() throws IOException {
        for (FileSystem system : systems) {
            system.close();
        }
        // The directory is the first one's.
        nodes.get(1).close();
        nodes.get(0).close();
    }

    private static Configuration configuration(TestNode node) {
        Configuration configuration = new Configuration();
        node.options().forEach(configuration::set);
        configuration.set(TideOptions.SPLIT_BYTES, Integer.toString(BLOCK));
        return configuration;
    }

    private void sparse(String name, long length) throws IOException {
        try (RandomAccessFile file =
                new RandomAccessFile(nodes.get(0).pfs().resolve(name).toFile(), "rw")) {
            file.setLength(length);
        }
    }

    private static void until(String what, Callable<Boolean> condition) throws Exception {
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!condition.call()) {
            assertTrue(what, System.nanoTime() < end);
            Thread.sleep(20);
        }
    }

    private static BlockLocation[] blocks(FileSystem system, Path path) throws IOException {
        FileStatus status = system.getFileStatus(path);
        return system.getFileBlockLocations(status, 0, status.getLen());
    }

    private static Set<String> hostsOfAll(FileSystem system, Path path) throws IOException {
        Set<String> all = new HashSet<>();
        for (BlockLocation block : blocks(system, path)) {
            all.addAll(Arrays.asList(block.getHosts()));
        }
        return all;
    }

    /** Offset, length, hosts and those that have it in memory, of each block. */
    private static List<String> words(BlockLocation[] blocks) throws IOException {
        List<String> words = new ArrayList<>();
        for (BlockLocation block : blocks) {
            assertArrayEquals(block.getNames(), block.getHosts());
            words.add(block.getOffset() + "+" + block.getLength() + " "
                    + Arrays.toString(block.getHosts())
                    + Arrays.toString(block.getCachedHosts()));
        }
        return words;
    }

    @Test
    public void absentBlocksAreEachOneNodesWhicheverIsAsked() throws Exception {
        List<String> owners = words(blocks(systems.get(0), SPARSE));
        assertEquals(BLOCKS, owners.size());
        assertEquals(owners, words(blocks(systems.get(0), SPARSE)));
        assertEquals(owners, words(blocks(systems.get(1), SPARSE)));
        assertEquals(Set.of("n0", "n1"), hostsOfAll(systems.get(0), SPARSE));
        for (BlockLocation block : blocks(systems.get(0), SPARSE)) {
            assertEquals(1, block.getHosts().length);
            assertEquals("nobody has it", 0, block.getCachedHosts().length);
        }
        FileStatus status = systems.get(0).getFileStatus(SPARSE);
        BlockLocation[] part = systems.get(0).getFileBlockLocations(status, 7L * BLOCK + 5, BLOCK);
        assertEquals(owners.subList(7, 9), words(part));
    }

    @Test
    public void blocksAreWhereTheyAreInMemory() throws Exception {
        byte[] bytes = Scene.bytes(5, 0, 3 * BLOCK + 1000);
        Files.write(nodes.get(0).pfs().resolve("file"), bytes);
        Path path = new Path("/file");
        try (FSDataInputStream in = systems.get(1).open(path)) {
            assertArrayEquals(bytes, in.readAllBytes());
        }
        List<String> held = List.of("0+" + BLOCK + " [n1][n1]",
                BLOCK + "+" + BLOCK + " [n1][n1]", 2 * BLOCK + "+" + BLOCK + " [n1][n1]",
                3 * BLOCK + "+1000 [n1][n1]");
        for (FileSystem system : systems) {
            until("its holder is known", () -> words(blocks(system, path)).equals(held));
        }
        FileContext context = FileContext.getFileContext(
                URI.create("tide:///"), configuration(nodes.get(0)));
        until("for contexts too", () -> words(
                context.getFileBlockLocations(path, 0, bytes.length)).equals(held));
    }

    @Test
    public void aListTellsTheSameAsEachFile() throws Exception {
        Path directory = new Path("/many");
        systems.get(0).mkdirs(new Path(directory, "inner"));
        for (int number = 0; number < 60; number++) {
            sparse("many/" + number, number == 7 ? 0 : (number + 1L) * 1_000_000);
        }
        int files = 0;
        Set<String> hosts = new HashSet<>();
        RemoteIterator<LocatedFileStatus> list = systems.get(0).listLocatedStatus(directory);
        while (list.hasNext()) {
            LocatedFileStatus status = list.next();
            if (status.isDirectory()) {
                continue;
            }
            files++;
            assertEquals(words(blocks(systems.get(1), status.getPath())),
                    words(status.getBlockLocations()));
            for (BlockLocation block : status.getBlockLocations()) {
                hosts.addAll(Arrays.asList(block.getHosts()));
            }
        }
        assertEquals(60, files);
        assertEquals(Set.of("n0", "n1"), hosts);
    }

    @Test
    public void hostsThatOptionsNameGoFirstAndWithoutANodeBlocksAreAnywhere() throws Exception {
        Configuration named = configuration(nodes.get(0));
        named.set(TideOptions.HOST_NAMES, "worker-7");
        try (FileSystem own = FileSystem.newInstance(URI.create("tide:///"), named)) {
            assertEquals(Set.of("worker-7"), hostsOfAll(own, SPARSE));
        }
        nodes.get(0).kill();
        assertEquals(Set.of("localhost"), hostsOfAll(systems.get(0), SPARSE));
        assertEquals(BLOCKS, blocks(systems.get(1), SPARSE).length);
    }
}
