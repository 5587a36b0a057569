/*
 * Opens files as Hadoop's streams. Which buffers a stream has is decided here, from the options of
 * the client and of the open; what a stream does with them, elsewhere.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.util.HashMap;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;

final class Streams {

    private Streams() {}

    /** What each open may choose of the options given; of others nothing is known here. */
    static Map<String, String> options(Configuration given) {
        Map<String, String> options = new HashMap<>();
        for (String key : TideOptions.PER_OPEN) {
            String value = given.get(key);
            if (value != null) {
                options.put(key, value);
            }
        }
        return options;
    }

    /** Opens a file for reading. */
    static FSDataInputStream open(NativeClient client, String path, Map<String, String> options,
            ReadPlan reads, FileSystem.Statistics statistics, OperationStatistics system)
            throws IOException {
        int buffer = client.sizes(options).readBufferBytes();
        boolean isOurs = options != null && options.containsKey(TideOptions.READ_BUFFER_BYTES);
        if (reads != null && reads.bufferBytes() >= 0 && !isOurs) {
            buffer = reads.bufferBytes();
        }
        NativeFile file = NativeFile.open(client, path, NativeFile.READ, 0, options, reads);
        try {
            return new FSDataInputStream(new TideInputStream(file, buffer, statistics, system));
        } catch (Throwable error) {
            // The heap may be full.
            file.shut();
            throw error;
        }
    }

    /** Opens a file for writing, as the flags of {@link NativeFile} say. */
    static FSDataOutputStream create(NativeClient client, String path, int flags, int mode,
            Map<String, String> options, FileSystem.Statistics statistics,
            OperationStatistics system) throws IOException {
        NativeClient.Sizes sizes = client.sizes(options);
        int open = flags | NativeFile.WRITE;
        NativeFile file = NativeFile.open(client, path, open, mode, options);
        boolean appends = (flags & NativeFile.APPEND) != 0;
        var kind = appends ? TideOutputStream.Kind.APPENDED : TideOutputStream.Kind.NEW;
        long start = appends ? file.sizeAtOpen() : 0;
        try {
            TideOutputStream stream = new TideOutputStream(file, kind, start, sizes, system);
            // Hadoop's wrapper counts for the whole file system.
            return new FSDataOutputStream(stream, statistics, start);
        } catch (Throwable error) {
            // The heap may be full. Nothing was written that a close would have to keep.
            file.shut();
            throw error;
        }
    }
}
