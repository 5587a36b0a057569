/*
 * A reference to a file that fails where the file is another one, or has other content, than when
 * the reference was made. Names are paths: a file that moved is not found again.
 */
package io.tidepool.hadoop;

import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.EOFException;
import java.io.IOException;
import java.io.UTFDataFormatException;
import java.io.UncheckedIOException;
import java.nio.ByteBuffer;
import java.util.Objects;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.InvalidPathHandleException;
import org.apache.hadoop.fs.Options;
import org.apache.hadoop.fs.PathHandle;

final class TidePathHandle implements PathHandle {

    private static final long serialVersionUID = 1;
    private static final int FORMAT = 0x7469_6401;

    private final String path;
    private final long device;
    private final long inode;
    /** Whether the content must be what it was. */
    private final boolean exact;
    private final long length;
    private final long modifiedNs;

    private TidePathHandle(String path, long[] numbers, boolean exact) {
        this.path = path;
        this.device = numbers[0];
        this.inode = numbers[1];
        this.length = numbers[2];
        this.modifiedNs = numbers[3];
        this.exact = exact;
    }

    /** A reference to what a status is of. */
    static TidePathHandle of(FileStatus status, Options.HandleOpt... options) {
        if (!(status instanceof TideFileStatus)) {
            throw new IllegalArgumentException("Wrong FileSystem: " + status.getPath());
        }
        if (status.isDirectory() || status.isSymlink()) {
            throw new IllegalArgumentException("a handle is of a file: " + status.getPath());
        }
        Options.HandleOpt.Data data = Options.HandleOpt
                .getOpt(Options.HandleOpt.Data.class, options)
                .orElse(Options.HandleOpt.changed(false));
        Options.HandleOpt.Location location = Options.HandleOpt
                .getOpt(Options.HandleOpt.Location.class, options)
                .orElse(Options.HandleOpt.moved(false));
        if (location.allowChange()) {
            throw new UnsupportedOperationException(
                    "files that moved are not found again: no PFS opens files by number for users");
        }
        TideFileStatus known = (TideFileStatus) status;
        long[] numbers = {known.device(), known.inode(), known.getLen(), known.modifiedNs()};
        return new TidePathHandle(
                known.getPath().toUri().getPath(), numbers, !data.allowChange());
    }

    /** The reference behind one that may come from another process. */
    static TidePathHandle from(PathHandle handle) throws IOException {
        if (handle instanceof TidePathHandle own) {
            return own;
        }
        ByteBuffer bytes = handle.bytes();
        byte[] array = new byte[bytes.remaining()];
        bytes.get(array);
        try (DataInputStream in = new DataInputStream(new ByteArrayInputStream(array))) {
            if (in.readInt() != FORMAT) {
                throw new InvalidPathHandleException("this is no handle of tide://");
            }
            boolean exact = in.readBoolean();
            long[] numbers = {in.readLong(), in.readLong(), in.readLong(), in.readLong()};
            return new TidePathHandle(in.readUTF(), numbers, exact);
        } catch (EOFException | UTFDataFormatException error) {
            throw new InvalidPathHandleException("this is no whole handle of tide://", error);
        }
    }

    /** Path below {@code tide:}. */
    String path() {
        return path;
    }

    /** Fails unless the file is still the one meant; {@code null} is none. */
    void check(TideFileStatus now) throws InvalidPathHandleException {
        if (now == null) {
            throw new InvalidPathHandleException(path + " is not there any more");
        }
        if (now.device() != device || now.inode() != inode) {
            throw new InvalidPathHandleException(path + " is another file now");
        }
        if (exact && (now.getLen() != length || now.modifiedNs() != modifiedNs)) {
            throw new InvalidPathHandleException(path + " has changed");
        }
    }

    @Override
    public ByteBuffer bytes() {
        ByteArrayOutputStream bytes = new ByteArrayOutputStream();
        try (DataOutputStream out = new DataOutputStream(bytes)) {
            out.writeInt(FORMAT);
            out.writeBoolean(exact);
            for (long number : new long[] {device, inode, length, modifiedNs}) {
                out.writeLong(number);
            }
            out.writeUTF(path);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return ByteBuffer.wrap(bytes.toByteArray()).asReadOnlyBuffer();
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof TidePathHandle handle && bytes().equals(handle.bytes());
    }

    @Override
    public int hashCode() {
        return Objects.hash(path, device, inode);
    }
}
