/*
 * Checksums of whole files as HDFS computes them, so that a copy between HDFS and tide:// can be
 * compared without reading both sides through one program. Reads the file; stores nothing.
 */
package io.tidepool.hadoop;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.util.Locale;
import java.util.zip.CRC32;
import java.util.zip.CRC32C;
import java.util.zip.Checksum;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CompositeCrcFileChecksum;
import org.apache.hadoop.fs.FileChecksum;
import org.apache.hadoop.fs.MD5MD5CRC32CastagnoliFileChecksum;
import org.apache.hadoop.fs.MD5MD5CRC32GzipFileChecksum;
import org.apache.hadoop.io.DataOutputBuffer;
import org.apache.hadoop.io.MD5Hash;
import org.apache.hadoop.util.DataChecksum;

final class Checksums {

    private static final int READ_BYTES = 1 << 20;
    /** What HDFS digests for a file without blocks. */
    private static final int EMPTY_BYTES = 32;
    private static final String COMPOSITE = "COMPOSITE_CRC";
    private static final String BLOCKWISE = "MD5MD5CRC";

    private final DataChecksum.Type type;
    private final int chunkBytes;
    private final boolean composite;
    private final long blockBytes;

    /** By the settings that HDFS's client has for this, and its defaults. */
    Checksums(Configuration configuration, long blockBytes) throws IOException {
        String mode = configuration.getTrimmed("dfs.checksum.combine.mode", BLOCKWISE)
                .toUpperCase(Locale.ROOT);
        String type = configuration.getTrimmed("dfs.checksum.type", "CRC32C");
        if (!mode.equals(COMPOSITE) && !mode.equals(BLOCKWISE)) {
            throw new IOException("while reading dfs.checksum.combine.mode: `" + mode
                    + "` is no way to combine checksums (" + BLOCKWISE + " or " + COMPOSITE + ")");
        }
        this.composite = mode.equals(COMPOSITE);
        this.type = DataChecksum.Type.valueOf(type);
        this.chunkBytes = configuration.getInt("dfs.bytes-per-checksum", 512);
        this.blockBytes = blockBytes;
        if (this.type != DataChecksum.Type.CRC32 && this.type != DataChecksum.Type.CRC32C) {
            throw new IOException("while reading dfs.checksum.type: `" + type
                    + "` sums nothing (CRC32C or CRC32)");
        }
        if (chunkBytes <= 0 || READ_BYTES % chunkBytes != 0 || blockBytes % chunkBytes != 0) {
            throw new IOException("while reading dfs.bytes-per-checksum: " + chunkBytes
                    + " does not divide blocks of " + blockBytes + " bytes (choose 512)");
        }
    }

    /** The checksum of the first {@code length} bytes of a file. */
    FileChecksum of(NativeClient client, String path, long size, long length)
            throws IOException {
        long bytes = Math.min(size, length);
        // Opened in any case: what cannot be read has no sum, also of nothing.
        try (NativeFile file = NativeFile.open(client, path, NativeFile.READ, 0, null)) {
            if (bytes <= 0) {
                MD5Hash digest = MD5Hash.digest(new byte[EMPTY_BYTES]);
                return new MD5MD5CRC32GzipFileChecksum(0, 0, digest);
            }
            return composite ? whole(file, bytes) : blockwise(file, bytes);
        }
    }

    /** What composing the checksums of all blocks gives: that of all bytes. */
    private FileChecksum whole(NativeFile file, long bytes) throws IOException {
        Checksum sum = type == DataChecksum.Type.CRC32C ? new CRC32C() : new CRC32();
        ByteBuffer buffer = ByteBuffer.allocateDirect(READ_BYTES);
        for (long at = 0; at < bytes; at += buffer.limit()) {
            fill(file, at, buffer, bytes);
            sum.update(buffer);
        }
        return new CompositeCrcFileChecksum((int) sum.getValue(), type, chunkBytes);
    }

    /** The digest of the digests of each block's checksums. */
    private FileChecksum blockwise(NativeFile file, long bytes) throws IOException {
        DataChecksum chunks = DataChecksum.newDataChecksum(type, chunkBytes);
        // HDFS digests all of this buffer, with the zeros behind what is in it.
        DataOutputBuffer digests = new DataOutputBuffer();
        byte[] sums = new byte[READ_BYTES / chunkBytes * chunks.getChecksumSize()];
        ByteBuffer buffer = ByteBuffer.allocateDirect(READ_BYTES);
        for (long block = 0; block < bytes; block += blockBytes) {
            long end = Math.min(block + blockBytes, bytes);
            MessageDigest digest = MD5Hash.getDigester();
            for (long at = block; at < end; at += buffer.limit()) {
                fill(file, at, buffer, end);
                int count = (buffer.limit() + chunkBytes - 1) / chunkBytes;
                ByteBuffer into = ByteBuffer.wrap(sums, 0, count * chunks.getChecksumSize());
                chunks.calculateChunkedSums(buffer, into);
                digest.update(sums, 0, count * chunks.getChecksumSize());
            }
            digests.write(digest.digest());
        }
        long chunksOfBlock = bytes > blockBytes ? blockBytes / chunkBytes : 0;
        MD5Hash digest = MD5Hash.digest(digests.getData());
        return type == DataChecksum.Type.CRC32C
                ? new MD5MD5CRC32CastagnoliFileChecksum(chunkBytes, chunksOfBlock, digest)
                : new MD5MD5CRC32GzipFileChecksum(chunkBytes, chunksOfBlock, digest);
    }

    /** Fills the buffer from a place, up to {@code end}, and flips it. */
    private static void fill(NativeFile file, long at, ByteBuffer buffer, long end)
            throws IOException {
        buffer.clear().limit((int) Math.min(buffer.capacity(), end - at));
        while (buffer.hasRemaining()) {
            if (file.read(at + buffer.position(), buffer) < 0) {
                throw new EOFException(file.path() + ": while summing it: it became shorter");
            }
        }
        buffer.flip();
    }
}
