/*
 * Joining files while their names change: what was opened is what is changed, and no file that
 * nobody meant is shortened or removed.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

public class TestConcatenation {

    private static final int LENGTH = 300_000;

    private Scene scene;
    private TideFileSystem system;

    /** A target and two sources. */
    @Before
    public void start() throws IOException {
        scene = Scene.start("64MiB");
        Configuration configuration = new Configuration();
        scene.node.options().forEach(configuration::set);
        system = (TideFileSystem) FileSystem.newInstance(URI.create("tide:///"), configuration);
        scene.make("/target", 1, 1000);
        scene.make("/one", 2, LENGTH);
        scene.make("/two", 3, LENGTH);
    }

    @After
    public void stop() throws IOException {
        system.close();
        scene.close();
    }

    private java.nio.file.Path below(String name) {
        return scene.node.pfs().resolve(name);
    }

    private void assertIs(String name, long seed, int length) throws IOException {
        assertEquals(name, length, Files.size(below(name)));
        assertArrayEquals(name, Scene.bytes(seed, 0, length), scene.onPfs("/" + name));
    }

    /** What others do at a moment of the join. */
    private interface Meanwhile {
        void happens() throws IOException;
    }

    /** Joins both, with something done when the second source is about to be opened. */
    private void join(Meanwhile meanwhile) throws IOException {
        new Concatenation(system, new Path("/target")) {
            @Override
            NativeFile open(Path path, int flags) throws IOException {
                if (path.getName().equals("two")) {
                    meanwhile.happens();
                }
                return super.open(path, flags);
            }
        }.join(new Path[] {new Path("/one"), new Path("/two")});
    }

    @Test
    public void aFailureShortensTheFileThatWasLengthenedWhateverItIsCalled() throws IOException {
        assertThrows(IOException.class, () -> join(() -> {
            Files.move(below("target"), below("moved"));
            scene.make("/target", 4, LENGTH);
            Files.delete(below("two"));
        }));
        assertIs("target", 4, LENGTH);
        assertIs("moved", 1, 1000);
        assertIs("one", 2, LENGTH);
    }

    @Test
    public void aSourceWhoseNameIsAnotherFilesStays() throws IOException {
        scene.make("/other", 4, LENGTH);
        var error = assertThrows(IOException.class, () -> join(() -> Files.move(
                below("other"), below("one"), StandardCopyOption.ATOMIC_MOVE)));
        assertTrue(error.toString(), error.getMessage().contains("/one"));
        assertIs("one", 4, LENGTH);
        assertEquals(1000 + 2 * LENGTH, Files.size(below("target")));
    }

    @Test
    public void aSourceThatGrowsMeanwhileStays() throws IOException {
        assertThrows(IOException.class, () -> join(() -> {
            try (FSDataOutputStream out = system.append(new Path("/one"))) {
                out.write(7);
            }
        }));
        assertEquals(LENGTH + 1, Files.size(below("one")));
        assertEquals(1000 + 2 * LENGTH, Files.size(below("target")));
    }

    @Test
    public void aFailureTakesNothingThatOthersAppended() throws IOException {
        var error = assertThrows(IOException.class, () -> join(() -> {
            try (FSDataOutputStream out = system.append(new Path("/target"))) {
                out.write(Scene.bytes(5, 0, 100));
            }
            Files.delete(below("two"));
        }));
        assertTrue(error.getSuppressed()[0].toString().contains("appended"));
        byte[] found = scene.onPfs("/target");
        assertEquals(1000 + LENGTH + 100, found.length);
        assertEquals(-1, Scene.difference(5, 0, java.nio.ByteBuffer.wrap(
                found, 1000 + LENGTH, 100).slice()));
    }

    @Test
    public void aTargetThatBecomesASourceIsNotJoinedToItself() throws IOException {
        assertThrows(IOException.class, () -> join(() -> {
            Files.delete(below("two"));
            Files.createLink(below("two"), below("target"));
        }));
        assertIs("target", 1, 1000);
        assertIs("one", 2, LENGTH);
    }

    @Test
    public void undisturbedItJoinsAndRemoves() throws IOException {
        join(() -> { });
        assertEquals(1000 + 2 * LENGTH, Files.size(below("target")));
        assertFalse(Files.exists(below("one")) || Files.exists(below("two")));
    }
}
