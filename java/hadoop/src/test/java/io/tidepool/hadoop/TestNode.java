/*
 * A real node over a directory of its own, for tests: started, killed and asked by the command
 * line. Knows nothing of Java's side of the product.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import java.util.stream.Stream;

final class TestNode implements Closeable {

    private static final String BINARY = System.getProperty("tidepool.binary");
    private static final long PATIENCE_S = 120;

    private final Path directory;
    private final Path pfs;
    private final String memory;
    private final String[] arguments;
    private Process process;

    /** Over a directory of its own where {@code pfs} is null. */
    private TestNode(Path pfs, String memory, String... arguments) throws IOException {
        this.directory = Files.createTempDirectory("tidepool-java-test-");
        this.pfs = pfs == null ? Files.createDirectory(directory.resolve("pfs")) : pfs;
        this.memory = memory;
        this.arguments = arguments;
    }

    /** A node that serves, with so much memory and further arguments of `node start`. */
    static TestNode start(String memory, String... arguments) throws IOException {
        return begin(new TestNode(null, memory, arguments));
    }

    private static TestNode begin(TestNode node) throws IOException {
        try {
            node.restart();
            return node;
        } catch (IOException error) {
            node.close();
            throw error;
        }
    }

    /** Nodes n0, n1 and so on of one cluster, over a directory of the first one. */
    static List<TestNode> cluster(int count, String memory) throws IOException {
        Path key = Files.createTempFile("tidepool-java-test-", ".key",
                PosixFilePermissions.asFileAttribute(PosixFilePermissions.fromString("rw-------")));
        long process = ProcessHandle.current().pid();
        List<String> members = new ArrayList<>();
        for (int number = 0; number < count; number++) {
            // Addresses that no other process of this machine takes.
            members.add(String.format("n%d=127.%d.%d.%d", number, 32 + (process >> 8 & 0x1f),
                    process & 0xff, 200 + number));
        }
        List<TestNode> nodes = new ArrayList<>();
        try {
            Files.write(key, new byte[32]);
            for (int number = 0; number < count; number++) {
                nodes.add(begin(new TestNode(number == 0 ? null : nodes.get(0).pfs, memory,
                        "--cluster-nodes", String.join(",", members), "--node-name", "n" + number,
                        "--cluster-key-file", key.toString(), "--timestamp-granularity-ns", "0")));
            }
            return nodes;
        } catch (IOException error) {
            for (TestNode node : nodes) {
                node.close();
            }
            throw error;
        } finally {
            Files.delete(key);
        }
    }

    /** A directory without a node. */
    static TestNode absent() throws IOException {
        return new TestNode(null, "64MiB");
    }

    /** Starts the node again; it must have ended. */
    void restart() throws IOException {
        List<String> command = new ArrayList<>(List.of(BINARY, "node", "start", "--foreground"));
        command.addAll(List.of("--pfs", pfs().toString(), "--memory", memory));
        command.addAll(List.of("--socket", socket().toString(), "--control", "off"));
        command.addAll(Arrays.asList(arguments));
        Files.deleteIfExists(socket());
        process = new ProcessBuilder(command)
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.appendTo(log().toFile()))
                .start();
        long end = System.nanoTime() + TimeUnit.SECONDS.toNanos(PATIENCE_S);
        while (!Files.exists(socket()) || !answers()) {
            if (!process.isAlive() || System.nanoTime() > end) {
                throw new IOException("the node does not start: " + Files.readString(log()));
            }
            pause();
        }
    }

    private boolean answers() throws IOException {
        Process status = new ProcessBuilder(BINARY, "status", "--socket", socket().toString())
                .redirectErrorStream(true)
                .redirectOutput(ProcessBuilder.Redirect.DISCARD)
                .start();
        return wait(status) == 0;
    }

    /** Ends the node at once, as a crash would. */
    void kill() throws IOException {
        process.destroyForcibly();
        wait(process);
    }

    /** Stops it without ending it: it answers nobody until {@link #goOn}. */
    void hang() throws IOException {
        signal("-STOP");
        Path tasks = Path.of("/proc/" + process.pid() + "/task");
        while (true) {
            try (Stream<Path> threads = Files.list(tasks)) {
                if (threads.allMatch(TestNode::isStopped)) {
                    return;
                }
            }
            pause();
        }
    }

    private static boolean isStopped(Path thread) {
        try {
            return Files.readString(thread.resolve("stat")).contains(") T ");
        } catch (IOException ended) {
            return true;
        }
    }

    /** Ends what {@link #hang} began. */
    void goOn() throws IOException {
        signal("-CONT");
    }

    private void signal(String signal) throws IOException {
        Process kill = new ProcessBuilder("kill", signal, Long.toString(process.pid())).start();
        if (wait(kill) != 0) {
            throw new IOException("no signal reaches the node");
        }
    }

    long processId() {
        return process.pid();
    }

    /** Runs a command against the node; returns what it printed. */
    String ask(String... words) throws IOException {
        List<String> command = new ArrayList<>(List.of(BINARY));
        command.addAll(Arrays.asList(words));
        command.addAll(List.of("--socket", socket().toString()));
        Process asked = new ProcessBuilder(command).redirectErrorStream(true).start();
        String text = new String(asked.getInputStream().readAllBytes());
        int status = wait(asked);
        if (status != 0) {
            throw new Refused(status, String.join(" ", command) + ": " + text);
        }
        return text;
    }

    /**
     * How many connections it has: the least of several answers, for the end of the question before
     * may not have come to the node.
     */
    int clients() throws IOException, InterruptedException {
        int least = clientsNow();
        for (int more = 0; more < 4; more++) {
            Thread.sleep(20);
            least = Math.min(least, clientsNow());
        }
        return least;
    }

    private int clientsNow() throws IOException {
        Matcher found = Pattern.compile("\"clients\": ?(\\d+)").matcher(ask("status", "--json"));
        if (!found.find()) {
            throw new IOException("the status tells no clients");
        }
        return Integer.parseInt(found.group(1));
    }

    /** The same where it is well that only a part of it can be done at once. */
    void order(String... words) throws IOException {
        try {
            ask(words);
        } catch (Refused error) {
            if (!error.getMessage().contains("held") && !error.getMessage().contains("pinned")) {
                throw error;
            }
        }
    }

    /** A command that failed. */
    static final class Refused extends IOException {

        private static final long serialVersionUID = 1;

        final int status;

        Refused(int status, String message) {
            super(message);
            this.status = status;
        }
    }

    /** The directory that {@code tide:///} stands for. */
    Path pfs() {
        return pfs;
    }

    Path socket() {
        return directory.resolve("node.sock");
    }

    private Path log() {
        return directory.resolve("node.log");
    }

    /** Options that find this node. */
    Map<String, String> options() {
        Map<String, String> options = new HashMap<>();
        options.put(TideOptions.SOCKET, socket().toString());
        options.put(TideOptions.PFS, pfs().toString());
        return options;
    }

    private static int wait(Process process) throws IOException {
        try {
            if (!process.waitFor(PATIENCE_S, TimeUnit.SECONDS)) {
                process.destroyForcibly();
                throw new IOException("a command hangs: " + process.info());
            }
            return process.exitValue();
        } catch (InterruptedException error) {
            process.destroyForcibly();
            throw new IOException("interrupted", error);
        }
    }

    private static void pause() throws IOException {
        try {
            Thread.sleep(20);
        } catch (InterruptedException error) {
            throw new IOException("interrupted", error);
        }
    }

    @Override
    public void close() throws IOException {
        if (process != null) {
            kill();
        }
        try (Stream<Path> files = Files.walk(directory)) {
            for (Path path : files.sorted(Comparator.reverseOrder()).toList()) {
                Files.deleteIfExists(path);
            }
        }
    }
}
