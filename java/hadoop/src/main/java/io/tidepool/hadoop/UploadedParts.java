/*
 * The file system as Hadoop's multipart uploader sees it. The uploader joins parts in a directory
 * that it alone writes to and removes afterwards, so a join that is refused for other files is done
 * here: bytes are copied, and the parts stay for an upload that is done again.
 */
package io.tidepool.hadoop;

import java.io.IOException;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.FilterFileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.IOUtils;

final class UploadedParts extends FilterFileSystem {

    private static final int COPY_BYTES = 1 << 20;

    UploadedParts(FileSystem system) {
        super(system);
    }

    /** Appends the parts to the target, synced. */
    @Override
    public void concat(Path target, Path[] parts) throws IOException {
        try (FSDataOutputStream into = fs.append(target)) {
            for (Path part : parts) {
                try (FSDataInputStream from = fs.open(part)) {
                    IOUtils.copyBytes(from, into, COPY_BYTES, false);
                }
            }
            into.hsync();
        }
    }
}
