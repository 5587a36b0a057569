/*
 * A node, a client and files with known bytes, for tests of streams. The bytes of a file follow
 * from its seed, so that every byte read can be checked without keeping the file.
 */
package io.tidepool.hadoop;

import java.io.Closeable;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.util.Map;
import org.apache.hadoop.fs.FileSystem;

final class Scene implements Closeable {

    final TestNode node;
    final NativeClient client;

    private Scene(TestNode node) throws IOException {
        this.node = node;
        this.client = NativeClient.connect(node.options());
    }

    static Scene start(String memory, String... arguments) throws IOException {
        return new Scene(TestNode.start(memory, arguments));
    }

    static Scene withoutNode() throws IOException {
        return new Scene(TestNode.absent());
    }

    /** The byte that a file of this seed has at an offset. */
    static byte at(long seed, long offset) {
        long word = (seed ^ (offset >>> 3)) * 0x9E3779B97F4A7C15L;
        word ^= word >>> 32;
        return (byte) (word >>> (8 * (offset & 7)));
    }

    static byte[] bytes(long seed, long offset, int length) {
        byte[] bytes = new byte[length];
        for (int index = 0; index < length; index++) {
            bytes[index] = at(seed, offset + index);
        }
        return bytes;
    }

    /** Index of the first byte that differs from those of the file at an offset, or -1. */
    static int difference(long seed, long offset, ByteBuffer bytes) {
        for (int index = 0; index < bytes.remaining(); index++) {
            if (bytes.get(bytes.position() + index) != at(seed, offset + index)) {
                return index;
            }
        }
        return -1;
    }

    static int difference(long seed, long offset, byte[] bytes, int length) {
        return difference(seed, offset, ByteBuffer.wrap(bytes, 0, length));
    }

    /** Makes a file on the PFS, past the node. */
    void make(String path, long seed, int length) throws IOException {
        try (OutputStream out = Files.newOutputStream(node.pfs().resolve(path.substring(1)))) {
            int step = 1 << 20;
            for (int done = 0; done < length; done += step) {
                out.write(bytes(seed, done, Math.min(step, length - done)));
            }
        }
    }

    NativeFile file(String path, Map<String, String> options) throws IOException {
        return NativeFile.open(client, path, NativeFile.READ, 0, options);
    }

    TideInputStream open(String path) throws IOException {
        return open(path, null, null);
    }

    TideInputStream open(String path, Map<String, String> options, FileSystem.Statistics whole)
            throws IOException {
        int buffer = client.sizes(options).readBufferBytes();
        return new TideInputStream(file(path, options), buffer, whole, null);
    }

    TideOutputStream create(String path, Map<String, String> options) throws IOException {
        int flags = NativeFile.WRITE | NativeFile.CREATE | NativeFile.TRUNCATE;
        NativeFile file = NativeFile.open(client, path, flags, 0644, options);
        var sizes = client.sizes(options);
        return new TideOutputStream(file, TideOutputStream.Kind.NEW, 0, sizes, null);
    }

    TideOutputStream append(String path) throws IOException {
        int flags = NativeFile.WRITE | NativeFile.APPEND;
        NativeFile file = NativeFile.open(client, path, flags, 0644, null);
        return new TideOutputStream(file, TideOutputStream.Kind.APPENDED, file.sizeAtOpen(),
                client.sizes(null), null);
    }

    byte[] onPfs(String path) throws IOException {
        return Files.readAllBytes(node.pfs().resolve(path.substring(1)));
    }

    @Override
    public void close() throws IOException {
        client.close();
        node.close();
    }
}
