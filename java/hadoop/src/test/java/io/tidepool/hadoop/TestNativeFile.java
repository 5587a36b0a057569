/*
 * Files through the native library and a real node: bytes arrive, errors are those that Hadoop's
 * callers expect.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Map;
import java.util.Random;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.junit.AfterClass;
import org.junit.BeforeClass;
import org.junit.Test;

public class TestNativeFile {

    private static TestNode node;
    private static NativeClient client;

    @BeforeClass
    public static void start() throws IOException {
        node = TestNode.start("128MiB");
        client = NativeClient.connect(node.options());
    }

    @AfterClass
    public static void stop() throws IOException {
        client.close();
        node.close();
    }

    private static byte[] content(int length) {
        byte[] bytes = new byte[length];
        new Random(length).nextBytes(bytes);
        return bytes;
    }

    private static byte[] readAll(NativeFile file, ByteBuffer buffer) throws IOException {
        while (buffer.hasRemaining() && file.read(buffer.position(), buffer) >= 0) {
            // Short reads are allowed.
        }
        byte[] bytes = new byte[buffer.position()];
        buffer.flip().get(bytes);
        return bytes;
    }

    @Test
    public void filesOfThePfsAreReadThroughTheNode() throws IOException {
        assertTrue(client.isConnected());
        assertEquals(node.pfs().toString(), client.pfsRoot());
        for (int length : new int[] {0, 1, 4096, 300_000, 9 << 20}) {
            byte[] expected = content(length);
            Files.write(node.pfs().resolve("f" + length), expected);
            try (var file = NativeFile.open(client, "/f" + length, NativeFile.READ, 0, null)) {
                assertEquals(length, file.size());
                // Twice: from the PFS, then from memory.
                for (int round = 0; round < 2; round++) {
                    var direct = ByteBuffer.allocateDirect(length + 1);
                    assertArrayEquals(expected, readAll(file, direct));
                    assertArrayEquals(expected, readAll(file, ByteBuffer.allocate(length + 1)));
                }
                assertEquals(-1, file.read(length, ByteBuffer.allocateDirect(1)));
            }
        }
    }

    @Test
    public void whatIsWrittenIsOnThePfsAfterTheClose() throws IOException {
        byte[] expected = content(5 << 20);
        ByteBuffer buffer = ByteBuffer.allocateDirect(expected.length).put(expected).flip();
        int flags = NativeFile.WRITE | NativeFile.CREATE | NativeFile.TRUNCATE;
        try (var file = NativeFile.open(client, "/written", flags, 0644, null)) {
            file.write(0, buffer);
            assertFalse(buffer.hasRemaining());
        }
        assertArrayEquals(expected, Files.readAllBytes(node.pfs().resolve("written")));
        int anew = NativeFile.WRITE | NativeFile.CREATE_NEW;
        var error = assertThrows(
                FileAlreadyExistsException.class,
                () -> NativeFile.open(client, "/written", anew, 0644, null));
        assertTrue(error.getMessage(), error.getMessage().contains("/written"));
    }

    @Test
    public void errorsAreThoseOfHadoop() throws IOException {
        var missing = assertThrows(
                FileNotFoundException.class,
                () -> NativeFile.open(client, "/no/such", NativeFile.READ, 0, null));
        assertTrue(missing.getMessage(), missing.getMessage().contains("/no/such"));
        Map<String, String> wrong = Map.of(TideOptions.READ_MODE, "sideways");
        var invalid = assertThrows(
                IOException.class,
                () -> NativeFile.open(client, "/no/such", NativeFile.READ, 0, wrong));
        assertTrue(invalid.getMessage(), invalid.getMessage().contains("two-level"));
        Files.write(node.pfs().resolve("closed"), content(10));
        var file = NativeFile.open(client, "/closed", NativeFile.READ, 0, null);
        file.close();
        file.close();
        assertThrows(IOException.class, () -> file.read(0, ByteBuffer.allocateDirect(1)));
    }
}
