/*
 * A JVM whose heap is full to the last byte when the native library first fails: an error reaches
 * Java, and the JVM lives.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

public class TestFullHeap {

    /** Files that the program lists, one at a time. */
    private static final int FILES = 100;

    /** The program with the full heap. */
    public static final class Program {

        private Program() {}

        /** Lists a directory on with no heap left; prints what was thrown. */
        public static void main(String[] words) throws IOException {
            NativeNames names = new NativeNames(NativeClient.connect(Map.of(
                    TideOptions.PFS, words[0], TideOptions.SOCKET, words[0] + "/no-socket")));
            long listing = ByteBuffer.wrap(names.list("/", 1)).order(ByteOrder.LITTLE_ENDIAN)
                    .getLong(0);
            // To find a native method takes heap.
            NativeNames.listMore(listing, 1);
            Object[] all = new Object[1 << 20];
            int filled = 0;
            Throwable thrown = null;
            // The JVM's own threads may let go of some heap after it was full.
            for (int left = FILES - 2; left > 0 && thrown == null; left--) {
                filled = fill(all, filled);
                try {
                    NativeNames.listMore(listing, 1);
                } catch (Throwable error) {
                    thrown = error;
                }
            }
            all = null;
            System.out.println("THROWN " + thrown);
        }

        /**
         * Keeps arrays, ever smaller ones, until not even an empty one can be made; answers how
         * many {@code all} holds then.
         */
        private static int fill(Object[] all, int from) {
            int next = from;
            for (int bytes = 1 << 20; bytes > 0; bytes /= 2) {
                try {
                    while (true) {
                        // The smallest is an empty one.
                        all[next] = new byte[bytes - 1];
                        next++;
                    }
                } catch (OutOfMemoryError full) {
                    // Smaller ones may find room.
                }
            }
            return next;
        }
    }

    @Rule public TemporaryFolder folder = new TemporaryFolder();

    @Test
    public void theFirstFailureIsAnErrorAndNotTheEndOfTheJvm() throws Exception {
        // To unpack it takes more heap than there is to be.
        Path library = folder.getRoot().toPath().resolve("library.so");
        try (InputStream stream = NativeLibrary.class.getResourceAsStream("/native/linux-"
                + System.getProperty("os.arch").replace("amd64", "x86_64")
                + "/libtidepool_java.so")) {
            Files.copy(stream, library);
        }
        Path pfs = folder.newFolder("pfs").toPath();
        for (int file = 0; file < FILES; file++) {
            Files.createFile(pfs.resolve("file-" + file));
        }
        String java = Path.of(System.getProperty("java.home"), "bin/java").toString();
        Process process = new ProcessBuilder(List.of(java, "-Xmx24m", "-XX:+UseSerialGC",
                "-XX:-UseTLAB", "-D" + NativeLibrary.PATH_PROPERTY + "=" + library,
                "-cp", System.getProperty("java.class.path"),
                Program.class.getName(), pfs.toString())).redirectErrorStream(true).start();
        String text = new String(process.getInputStream().readAllBytes());
        assertEquals(text, 0, process.waitFor());
        assertTrue(text, text.contains("THROWN java.lang.OutOfMemoryError"));
    }
}
