/*
 * The one node, or the directory without a node, that all contract tests of a JVM use; how comes as
 * the property tide.test.mode: `through`, `bypass` or `absent`. It ends with the JVM.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.io.UncheckedIOException;
import java.net.URI;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileContext;
import org.apache.hadoop.fs.FileSystem;

final class ContractNode {

    /** How bytes are written, or that no node is there. */
    static final String MODE = System.getProperty("tide.test.mode", "through");

    private static final URI ROOT = URI.create("tide:///");
    private static final TestNode NODE = begin();

    private ContractNode() {}

    /** Starts the node, once; every configuration made after this knows it. */
    static void start() {
        if (NODE == null) {
            throw new IllegalStateException("no node");
        }
    }

    private static TestNode begin() {
        try {
            boolean absent = MODE.equals("absent");
            TestNode node = absent ? TestNode.absent() : TestNode.start("256MiB");
            Runtime.getRuntime().addShutdownHook(new Thread(() -> end(node)));
            node.options().forEach((key, value) -> System.setProperty("test." + key, value));
            System.setProperty("test.write.mode", absent ? "through" : MODE);
            Configuration.addDefaultResource("tide-test.xml");
            // Loads the file system, and by that what it brings to configurations.
            FileSystem.get(ROOT, new Configuration());
            return node;
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }

    private static void end(TestNode node) {
        try {
            node.close();
        } catch (IOException error) {
            System.err.println("the node of the tests: " + error);
        }
    }

    /** A file system on the node. */
    static FileSystem fileSystem() throws IOException {
        start();
        return FileSystem.get(ROOT, new Configuration());
    }

    /** A file context on the node. */
    static FileContext fileContext() throws IOException {
        start();
        return FileContext.getFileContext(ROOT, new Configuration());
    }

    /** A number of the node's status. */
    static long counter(String name) throws IOException {
        String status = NODE.ask("status", "--json");
        Matcher found = Pattern.compile('"' + name + "\": ?(\\d+)").matcher(status);
        if (!found.find()) {
            throw new IOException("no " + name + " in " + status);
        }
        return Long.parseLong(found.group(1));
    }

    /** The directory behind {@code tide:///}. */
    static java.nio.file.Path pfs() {
        return NODE.pfs();
    }
}
