/*
 * Joins files: the bytes of the sources are appended to the target, which is shortened again where
 * that fails, and the sources are removed at the end. Readers of the target may see a part of the
 * new bytes meanwhile; the parallel file system has no call for this.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.HashSet;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

final class Concatenation {

    private static final int COPY_BYTES = 1 << 20;

    private final TideFileSystem system;

    Concatenation(TideFileSystem system) {
        this.system = system;
    }

    /** Appends the sources to the target in their order, then removes them. */
    void join(Path target, Path[] sources) throws IOException {
        if (sources == null || sources.length == 0) {
            throw new IllegalArgumentException("there is nothing to join to " + target);
        }
        check(target, sources);
        long before = system.getFileStatus(target).getLen();
        try {
            append(target, sources);
        } catch (IOException | RuntimeException error) {
            try {
                system.truncate(target, before);
            } catch (IOException | RuntimeException later) {
                error.addSuppressed(later);
            }
            throw error;
        }
        for (Path source : sources) {
            system.delete(source, false);
        }
    }

    private void check(Path target, Path[] sources) throws IOException {
        Set<Identity> seen = new HashSet<>();
        seen.add(identity(target));
        for (Path source : sources) {
            if (!seen.add(identity(system.makeQualified(source)))) {
                throw new PathIOException(source.toString(), "while joining files: it is named "
                        + "twice, or has two names (name each file once)");
            }
        }
    }

    /** What a file is, whatever its names. */
    private record Identity(long device, long inode) {}

    private Identity identity(Path path) throws IOException {
        TideFileStatus status = system.getFileStatus(path);
        if (!status.isFile()) {
            throw new PathIOException(path.toString(),
                    "while joining files: it is no file (name files only)");
        }
        return new Identity(status.device(), status.inode());
    }

    private void append(Path target, Path[] sources) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect(COPY_BYTES);
        int flags = NativeFile.WRITE | NativeFile.APPEND;
        try (NativeFile into = NativeFile.open(
                system.client(), target.toUri().getPath(), flags, 0, null)) {
            for (Path source : sources) {
                String name = system.makeQualified(source).toUri().getPath();
                try (NativeFile from = NativeFile.open(
                        system.client(), name, NativeFile.READ, 0, null)) {
                    copy(from, into, buffer);
                }
            }
        }
    }

    private static void copy(NativeFile from, NativeFile into, ByteBuffer buffer)
            throws IOException {
        // No more than it has now, even if it grows.
        long end = from.size();
        long at = 0;
        while (at < end) {
            buffer.clear().limit((int) Math.min(COPY_BYTES, end - at));
            int bytes = from.read(at, buffer);
            if (bytes < 0) {
                return;
            }
            buffer.flip();
            into.write(0, buffer);
            at += bytes;
        }
    }
}
