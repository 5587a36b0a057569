/*
 * Two users on one node, each in a JVM of his own: the permissions of the PFS hold. Starts the
 * other JVM as user 65534, which only root can.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.permission.FsAction;
import org.apache.hadoop.fs.permission.FsPermission;
import org.junit.Assume;
import org.junit.Test;

/** Permissions of two users on one node. */
public class TestTwoUsers {

    private static final String OTHER = "65534";
    private static final String DENIED = "AccessControlException";

    @Test
    public void eachUserMayWhatTheDirectoryAllows() throws Exception {
        Assume.assumeTrue("only root starts programs of another user",
                System.getProperty("user.name").equals("root"));
        Path classes = Files.createTempDirectory("tidepool-java-two-users-");
        try (TestNode node = TestNode.start("64MiB")) {
            permit(node.pfs().getParent(), "rwxr-xr-x");
            permit(node.pfs(), "rwxr-xr-x");
            permit(classes, "rwxr-xr-x");
            Configuration configuration = configuration(node.socket(), node.pfs());
            try (FileSystem system =
                    FileSystem.newInstance(URI.create("tide:///"), configuration)) {
                prepare(system);
                check(ask(node, copied(classes)));
                FileStatus made = system.getFileStatus(path("/shared/made"));
                assertEquals(NativeNames.user(Integer.parseInt(OTHER)), made.getOwner());
                assertEquals(0640, made.getPermission().toShort());
                assertEquals(1000, system.getFileStatus(path("/open")).getLen());
                assertEquals(10, system.getFileStatus(path("/shared/tree/private/kept")).getLen());
            }
        } finally {
            remove(classes);
        }
    }

    private static org.apache.hadoop.fs.Path path(String name) {
        return new org.apache.hadoop.fs.Path(name);
    }

    private static Configuration configuration(Path socket, Path pfs) {
        Configuration configuration = new Configuration();
        configuration.set(TideOptions.SOCKET, socket.toString());
        configuration.set(TideOptions.PFS, pfs.toString());
        return configuration;
    }

    private static void prepare(FileSystem system) throws IOException {
        write(system, "/private/secret", 1000);
        system.setPermission(path("/private"), new FsPermission((short) 0700));
        write(system, "/open", 1000);
        write(system, "/closed", 1000);
        system.setPermission(path("/closed"), new FsPermission((short) 0600));
        system.mkdirs(path("/shared"));
        system.setPermission(path("/shared"), new FsPermission((short) 01777));
        write(system, "/shared/roots", 10);
        // A tree that others may empty, but for a part of it.
        write(system, "/shared/tree/private/kept", 10);
        system.setPermission(path("/shared/tree"), new FsPermission((short) 0777));
        system.setPermission(path("/shared/tree/private"), new FsPermission((short) 0700));
        // So that what is refused is in memory already.
        read(system, "/closed");
        read(system, "/private/secret");
    }

    private static void write(FileSystem system, String name, int bytes) throws IOException {
        try (FSDataOutputStream out = system.create(path(name))) {
            out.write(new byte[bytes]);
        }
    }

    private static void read(FileSystem system, String name) throws IOException {
        try (FSDataInputStream in = system.open(path(name))) {
            in.readAllBytes();
        }
    }

    private static void check(Map<String, String> answers) {
        Map<String, String> expected = new TreeMap<>();
        for (String refused : List.of("access", "append", "closed", "delete", "glob", "list",
                "mode", "owner", "rename", "secret", "sticky", "times", "tree", "truncate",
                "write")) {
            expected.put(refused, DENIED);
        }
        for (String allowed : List.of("make", "open", "status", "user")) {
            expected.put(allowed, "done");
        }
        assertEquals(expected, new TreeMap<>(answers));
    }

    /** Everything on the class path, where other users can read it. */
    private static String copied(Path directory) throws IOException {
        List<String> copies = new ArrayList<>();
        for (String entry : System.getProperty("java.class.path").split(":")) {
            Path from = Paths.get(entry);
            Path to = directory.resolve(copies.size() + "-" + from.getFileName());
            if (Files.isDirectory(from)) {
                try (Stream<Path> tree = Files.walk(from)) {
                    for (Path path : tree.toList()) {
                        Path copy = to.resolve(from.relativize(path).toString());
                        Files.copy(path, copy);
                        permit(copy, "rwxr-xr-x");
                    }
                }
            } else if (Files.isRegularFile(from)) {
                Files.copy(from, to);
                permit(to, "rw-r--r--");
            } else {
                continue;
            }
            copies.add(to.toString());
        }
        return String.join(":", copies);
    }

    private static void permit(Path path, String permissions) throws IOException {
        Files.setPosixFilePermissions(path, PosixFilePermissions.fromString(permissions));
    }

    private static void remove(Path directory) throws IOException {
        try (Stream<Path> tree = Files.walk(directory)) {
            for (Path path : tree.sorted(Comparator.reverseOrder()).toList()) {
                Files.delete(path);
            }
        }
    }

    private static Map<String, String> ask(TestNode node, String classes) throws Exception {
        Path home = Files.createTempDirectory("tidepool-java-other-user-");
        permit(home, "rwxrwxrwx");
        List<String> command = List.of("setpriv", "--reuid=" + OTHER, "--regid=" + OTHER,
                "--clear-groups", Paths.get(System.getProperty("java.home"), "bin/java").toString(),
                "-Djava.io.tmpdir=" + home, "-Xmx128m", "-cp", classes, Probe.class.getName(),
                node.socket().toString(), node.pfs().toString());
        Process process = new ProcessBuilder(command).directory(home.toFile())
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        String text = new String(process.getInputStream().readAllBytes());
        assertEquals(text, 0, process.waitFor());
        remove(home);
        Map<String, String> answers = new TreeMap<>();
        text.lines().filter(line -> line.startsWith("answer "))
                .map(line -> line.split(" ")).forEach(words -> answers.put(words[1], words[2]));
        assertTrue(text, !answers.isEmpty());
        return answers;
    }

    /** The program of the other user. */
    public static final class Probe {
        private interface Attempt {
            void run() throws IOException;
        }

        private Probe() {}

        /** Tries everything and prints what came of it. */
        public static void main(String[] words) throws IOException {
            Configuration configuration = configuration(Paths.get(words[0]), Paths.get(words[1]));
            FileSystem system = FileSystem.newInstance(URI.create("tide:///"), configuration);
            attempt("user", () -> {
                if (!((TideFileSystem) system).client().isConnected()) {
                    throw new IOException("no node");
                }
            });
            attempt("open", () -> read(system, "/open"));
            attempt("status", () -> system.getFileStatus(path("/closed")));
            attempt("closed", () -> read(system, "/closed"));
            attempt("secret", () -> read(system, "/private/secret"));
            attempt("list", () -> system.listStatus(path("/private")));
            attempt("glob", () -> system.globStatus(path("/private/*")));
            attempt("write", () -> write(system, "/open", 1));
            attempt("append", () -> system.append(path("/open")).close());
            attempt("truncate", () -> system.truncate(path("/open"), 0));
            attempt("delete", () -> system.delete(path("/open"), false));
            attempt("rename", () -> system.rename(path("/open"), path("/shared/open")));
            attempt("sticky", () -> system.delete(path("/shared/roots"), false));
            attempt("mode", () -> system.setPermission(path("/open"),
                    new FsPermission((short) 0666)));
            attempt("owner", () -> system.setOwner(path("/open"), OTHER, null));
            attempt("times", () -> system.setTimes(path("/open"), 1, 1));
            attempt("access", () -> system.access(path("/open"), FsAction.WRITE));
            attempt("tree", () -> system.delete(path("/shared/tree"), true));
            attempt("make", () -> {
                write(system, "/shared/made", 5);
                system.setPermission(path("/shared/made"), new FsPermission((short) 0640));
            });
            system.close();
        }

        private static void attempt(String name, Attempt attempt) {
            String answer = "done";
            try {
                attempt.run();
            } catch (IOException error) {
                answer = error.getClass().getSimpleName();
                System.err.println(name + ": " + error.getMessage());
            }
            System.out.println("answer " + name + " " + answer);
        }
    }
}
