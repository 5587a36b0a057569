/*
 * The streams of tide://, over open files. Plain ones: bytes at a cursor.
 */
package io.tidepool.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.ByteBuffer;
import java.util.Map;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSExceptionMessages;
import org.apache.hadoop.fs.FSInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Syncable;

final class Streams {

    private Streams() {}

    /** Opens a file for reading. */
    static FSDataInputStream open(NativeClient client, String path, Map<String, String> options,
            FileSystem.Statistics statistics) throws IOException {
        NativeFile file = NativeFile.open(client, path, NativeFile.READ, 0, options);
        return new FSDataInputStream(new Input(file, statistics));
    }

    /** Opens a file for writing, as the flags of {@link NativeFile} say. */
    static FSDataOutputStream create(NativeClient client, String path, int flags, int mode,
            Map<String, String> options, FileSystem.Statistics statistics) throws IOException {
        int open = flags | NativeFile.WRITE;
        NativeFile file = NativeFile.open(client, path, open, mode, options);
        long start = (flags & NativeFile.APPEND) != 0 ? file.size() : 0;
        return new FSDataOutputStream(new Output(file, start), statistics, start);
    }

    private static final class Input extends FSInputStream {
        private final NativeFile file;
        private final FileSystem.Statistics statistics;
        private long position;

        Input(NativeFile file, FileSystem.Statistics statistics) {
            this.file = file;
            this.statistics = statistics;
        }

        @Override
        public void seek(long to) throws IOException {
            if (to < 0) {
                throw new EOFException(FSExceptionMessages.NEGATIVE_SEEK);
            }
            if (to > file.size()) {
                throw new EOFException(FSExceptionMessages.CANNOT_SEEK_PAST_EOF);
            }
            position = to;
        }

        @Override
        public long getPos() {
            return position;
        }

        @Override
        public boolean seekToNewSource(long target) {
            return false;
        }

        @Override
        public int read() throws IOException {
            byte[] one = new byte[1];
            return read(one, 0, 1) < 0 ? -1 : one[0] & 0xff;
        }

        @Override
        public int read(byte[] bytes, int start, int length) throws IOException {
            validatePositionedReadArgs(position, bytes, start, length);
            int read = file.read(position, bytes, start, length);
            if (read > 0) {
                position += read;
                statistics.incrementBytesRead(read);
            }
            return read;
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }

    private static final class Output extends OutputStream implements Syncable {
        private final NativeFile file;
        private long position;

        Output(NativeFile file, long position) {
            this.file = file;
            this.position = position;
        }

        @Override
        public void write(int value) throws IOException {
            write(new byte[] {(byte) value}, 0, 1);
        }

        @Override
        public void write(byte[] bytes, int start, int length) throws IOException {
            ByteBuffer buffer = ByteBuffer.allocateDirect(length);
            file.write(position, buffer.put(bytes, start, length).flip());
            position += length;
        }

        @Override
        public void hflush() throws IOException {
            file.sync();
        }

        @Override
        public void hsync() throws IOException {
            file.sync();
        }

        @Override
        public void close() throws IOException {
            file.close();
        }
    }
}
