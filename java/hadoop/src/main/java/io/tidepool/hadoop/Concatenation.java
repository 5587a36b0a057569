/*
 * Joins files: the bytes of the sources are appended to the target, which is shortened again where
 * that fails, and the sources are removed once the target's bytes are synced. Readers of the target
 * may see a part of the new bytes meanwhile; the parallel file system has no call for this. Names
 * may be given to other files while this goes on: what was opened is what is changed, and a source
 * that is not what was copied is not removed.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

class Concatenation {

    private static final int COPY_BYTES = 1 << 20;

    private final TideFileSystem system;
    private final Path target;
    /** Bytes that were given to the target, whether it took them or not. */
    private long given;

    Concatenation(TideFileSystem system, Path target) {
        this.system = system;
        this.target = target;
    }

    /** A source as it was copied. */
    private record Copied(Path path, NativeFile.Identity identity, long bytes) {}

    /** Appends the sources to the target in their order, then removes them. */
    void join(Path[] sources) throws IOException {
        if (sources == null || sources.length == 0) {
            throw new IllegalArgumentException("there is nothing to join to " + target);
        }
        List<Path> paths = new ArrayList<>();
        for (Path source : sources) {
            paths.add(system.makeQualified(source));
        }
        // Before anything is changed; what is opened later is looked at again.
        Set<NativeFile.Identity> seen = new HashSet<>();
        seen.add(identity(file(target)));
        for (Path path : paths) {
            add(seen, path, identity(file(path)));
        }
        for (Copied source : append(paths)) {
            remove(source);
        }
    }

    private static void add(Set<NativeFile.Identity> seen, Path path, NativeFile.Identity identity)
            throws IOException {
        if (!seen.add(identity)) {
            throw new PathIOException(path.toString(), "while joining files: it is named twice, "
                    + "or has two names (name each file once)");
        }
    }

    private TideFileStatus file(Path path) throws IOException {
        TideFileStatus status = system.getFileStatus(path);
        if (!status.isFile()) {
            throw new PathIOException(path.toString(),
                    "while joining files: it is no file (name files only)");
        }
        return status;
    }

    private static NativeFile.Identity identity(TideFileStatus status) {
        return new NativeFile.Identity(status.device(), status.inode());
    }

    /** Opens one of the files; tests change names around it. */
    NativeFile open(Path path, int flags) throws IOException {
        return NativeFile.open(system.client(), path.toUri().getPath(), flags, 0, null);
    }

    /** Returns when the target has all bytes, synced; what fails leaves it with those before. */
    private List<Copied> append(List<Path> paths) throws IOException {
        try (NativeFile into = open(target, NativeFile.WRITE | NativeFile.APPEND)) {
            long before = into.size();
            try {
                List<Copied> copied = copyAll(paths, into);
                // The sources go, so a close that only hands the bytes over is not enough.
                into.sync();
                return copied;
            } catch (IOException | RuntimeException error) {
                try {
                    shorten(into, before);
                } catch (IOException | RuntimeException later) {
                    error.addSuppressed(later);
                }
                throw error;
            }
        }
    }

    private List<Copied> copyAll(List<Path> paths, NativeFile into) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect(COPY_BYTES);
        Set<NativeFile.Identity> seen = new HashSet<>();
        seen.add(into.identity());
        List<Copied> copied = new ArrayList<>();
        for (Path path : paths) {
            try (NativeFile from = open(path, NativeFile.READ)) {
                NativeFile.Identity identity = from.identity();
                add(seen, path, identity);
                copied.add(new Copied(path, identity, copy(from, into, buffer)));
            }
        }
        return copied;
    }

    /** Copies what a file has now, and no more if it grows; returns how much that was. */
    private long copy(NativeFile from, NativeFile into, ByteBuffer buffer) throws IOException {
        long end = from.size();
        long at = 0;
        while (at < end) {
            buffer.clear().limit((int) Math.min(COPY_BYTES, end - at));
            int bytes = from.read(at, buffer);
            if (bytes < 0) {
                return at;
            }
            buffer.flip();
            given += bytes;
            into.write(0, buffer);
            at += bytes;
        }
        return at;
    }

    private void shorten(NativeFile into, long before) throws IOException {
        if (into.size() > before + given) {
            throw new PathIOException(target.toString(), "others appended to it meanwhile, so the "
                    + "part that was joined stays (from byte " + before + " on)");
        }
        into.setSize(before);
    }

    private void remove(Copied source) throws IOException {
        TideFileStatus status = system.statusOrNull(source.path());
        if (status == null) {
            return;
        }
        if (!identity(status).equals(source.identity()) || status.getLen() != source.bytes()) {
            throw new PathIOException(source.path().toString(), "it was joined to " + target
                    + " and is not what it was any more, so it stays (delete it if it is of no "
                    + "use)");
        }
        system.delete(source.path(), false);
    }
}
