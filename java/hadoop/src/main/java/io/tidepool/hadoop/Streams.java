/*
 * Opens files as Hadoop's streams. Which buffers a stream has is decided here, from the options of
 * the client and of the open; what a stream does with them, elsewhere.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.Map;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;

final class Streams {

    private Streams() {}

    /** Opens a file for reading. */
    static FSDataInputStream open(NativeClient client, String path, Map<String, String> options,
            FileSystem.Statistics statistics) throws IOException {
        int buffer = client.sizes(options).readBufferBytes();
        NativeFile file = NativeFile.open(client, path, NativeFile.READ, 0, options);
        return new FSDataInputStream(new TideInputStream(file, buffer, statistics));
    }

    /** Opens a file for writing, as the flags of {@link NativeFile} say. */
    static FSDataOutputStream create(NativeClient client, String path, int flags, int mode,
            Map<String, String> options, FileSystem.Statistics statistics) throws IOException {
        NativeClient.Sizes sizes = client.sizes(options);
        int open = flags | NativeFile.WRITE;
        NativeFile file = NativeFile.open(client, path, open, mode, options);
        boolean appends = (flags & NativeFile.APPEND) != 0;
        var kind = appends ? TideOutputStream.Kind.APPENDED : TideOutputStream.Kind.NEW;
        long start = appends ? file.sizeAtOpen() : 0;
        TideOutputStream stream = new TideOutputStream(file, kind, start, sizes);
        // Hadoop's wrapper counts for the whole file system.
        return new FSDataOutputStream(stream, statistics, start);
    }
}
